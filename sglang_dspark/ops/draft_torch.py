"""The sequential loop in plain torch: the same draws as the compiled one, for devices and dtypes it does not cover."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.noise import Noise


def draft_block_torch(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    support: int | None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    mask: Tensor | None = None,
    rows: Tensor | None = None,
    ids: Tensor | None = None,
) -> tuple[Tensor, SparseQ | None, Tensor | None, Tensor]:
    """Arguments as `draft_block`, already checked. Returns the fields of `DraftBlock`; q is stored in full.

    With `ids` `[B, γ, C]` int64, candidates that were chosen elsewhere, `base_logits` are theirs, `[B, γ, C]`; `rows`
    `[B, γ, C, r]` replaces their rows of W2.
    """
    batch_size, gamma, vocab_size = base_logits.shape
    device = base_logits.device
    base = base_logits.float()
    finite = drawable(base)
    base = torch.where(finite.unsqueeze(-1), base, 0.0)
    if ids is None:
        ids = select_candidates(base, vocab_size if support is None else support)
        base = base.gather(2, ids)
    w2 = head.w2.float() if support is None else None
    temperature = anchors.new_zeros(batch_size, dtype=torch.float32) if temperatures is None else temperatures
    sampled = (temperature > 0).unsqueeze(-1)
    inverse = 1.0 / torch.where(sampled, temperature.unsqueeze(-1), 1.0)

    usable = torch.ones(batch_size, dtype=torch.bool, device=device)
    counts = torch.zeros(batch_size, dtype=torch.int64, device=device)
    state = torch.zeros((batch_size, head.w1.shape[1]), device=device)
    probs = torch.zeros(ids.shape, device=device)
    previous, tokens, inputs = anchors.long(), [], []
    for k in range(gamma):
        embedded = F.embedding(previous, head.w1).float()
        inputs.append(embedded)
        logits = base[:, k]
        if k > 0 or head.first_position:
            latent, state = head.latent(embedded, hidden[:, k], state)
            gathered = w2
            if gathered is None:
                gathered = (head.w2[ids[:, k]] if rows is None else rows[:, k]).float()
            logits = logits + (gathered @ latent.unsqueeze(-1)).squeeze(-1)
        if mask is not None:
            logits = torch.where(_allowed(mask[:, k], ids[:, k]), logits, float("-inf"))
        usable = usable & finite[:, k] & drawable(logits)
        counts = counts + usable
        logits = torch.where(usable.unsqueeze(-1), logits, 0.0)
        choice = logits.argmax(dim=-1)
        if temperatures is not None:
            scaled = (logits - logits.amax(dim=-1, keepdim=True)) * inverse
            weights = scaled.exp()
            keep = _kept(weights, top_k, top_p)
            weights = torch.where(keep, weights, 0.0)
            probs[:, k] = torch.where(sampled & usable.unsqueeze(-1), weights / weights.sum(dim=-1, keepdim=True), 0.0)
            keys = torch.where(keep, scaled + noise.gumbel(k, ids[:, k]), float("-inf"))
            choice = torch.where(sampled.squeeze(-1), keys.argmax(dim=-1), choice)
        previous = torch.where(usable, ids[:, k].gather(1, choice.unsqueeze(1)).squeeze(1), 0)
        tokens.append(previous)
    confidence = None
    if confidence_head is not None:
        confidence = confidence_head(hidden, torch.stack(inputs, dim=1))
        confidence = torch.where(torch.arange(gamma, device=device) < counts.unsqueeze(1), confidence, 0.0)
    q = None if temperatures is None else SparseQ(ids.to(torch.int32), probs)
    return torch.stack(tokens, dim=1), q, confidence, counts


def drawable(logits: Tensor) -> Tensor:
    """Rows without NaN and +inf, and with something above -inf (a legitimate mask): `[..., V]` -> `[...]` bool."""
    return logits.amax(dim=-1).isfinite() & ~logits.isnan().any(dim=-1)


def select_candidates(logits: Tensor, support: int) -> Tensor:
    """The `support` largest entries of each row, lowest ids on ties: `[B, γ, V]` -> `[B, γ, C]` int64, ascending."""
    batch_size, gamma, vocab_size = logits.shape
    if support >= vocab_size:
        return torch.arange(vocab_size, device=logits.device).expand(logits.shape)
    if batch_size == 0:
        return torch.zeros((0, gamma, support), dtype=torch.int64, device=logits.device)
    smallest = logits.topk(support, dim=-1).values[..., -1:]
    above, equal = logits > smallest, logits == smallest
    room = support - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= room))
    return kept.nonzero()[:, -1].view(batch_size, gamma, support)


def _allowed(mask: Tensor, ids: Tensor) -> Tensor:
    words = mask.gather(1, ids // 32).long()
    return ((words >> (ids % 32)) & 1).bool()


def _kept(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    keep = torch.ones_like(weights, dtype=torch.bool)
    if top_k is None and top_p is None:
        return keep
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        keep &= torch.arange(weights.shape[1], device=weights.device) < top_k.unsqueeze(1)
    if top_p is not None:
        ordered = ordered.double()
        total = ordered.sum(dim=-1, keepdim=True)
        keep &= (ordered.cumsum(dim=-1) - ordered) <= top_p.double().unsqueeze(1) * total
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)
