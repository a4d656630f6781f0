"""The training loss of DSpark (report, section on training): cross-entropy, total variation and confidence.

`L = Σ w (0.1·CE + 0.9·‖p - q‖₁) / Σ w + L_conf`, `w = exp(-(k-1) / decay)`. Logits of [N, V] exist for one chunk of
rows at a time: the gradient is formed in the forward pass and the logits are dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LossWeights:
    cross_entropy: float = 0.1
    total_variation: float = 0.9
    confidence: float = 1.0
    position_decay: float = 4.0


def position_weights(slot: Tensor, decay: float) -> Tensor:
    """`w_k = exp(-(k-1) / decay)`, not normalised. slot int64 [N] (0 is k = 1) -> float32 [N]."""
    return torch.exp(-slot.float() / decay)


class _VocabularyLoss(torch.autograd.Function):
    """See `vocabulary_loss`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        latents: Tensor,
        w2: Tensor,
        lm_head: Tensor,
        top_ids: Tensor,
        top_probs: Tensor,
        labels: Tensor,
        row_weights: Tensor,
        offset: Tensor | None,
        weights: LossWeights,
        chunk: int,
        want_hits: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kind = lm_head.dtype
        offset = None if offset is None else offset.to(kind)
        joint = torch.cat([lm_head, w2.detach().to(kind)], dim=1)
        inputs = torch.cat([hidden.detach().to(kind), latents.detach().to(kind)], dim=1)
        d_inputs = torch.empty_like(inputs)
        d_w2 = torch.zeros_like(w2)
        loss, distance, hit = [], [], []
        width = hidden.shape[1]
        for start in range(0, len(inputs), chunk):
            rows = slice(start, start + chunk)
            logits = F.linear(inputs[rows], joint, offset)
            if want_hits:
                hit.append(logits.argmax(-1) == labels[rows])
            q = logits.softmax(-1)
            part, l1 = _loss_and_gradient_(q, top_ids[rows], top_probs[rows], labels[rows], row_weights[rows], weights)
            loss.append(part)
            distance.append(l1)
            torch.mm(q, joint, out=d_inputs[rows])
            d_w2 += (inputs[rows, width:].T.contiguous() @ q).T.to(d_w2.dtype)
        ctx.save_for_backward(d_inputs[:, :width].to(hidden.dtype), d_inputs[:, width:].to(latents.dtype), d_w2)
        hits = torch.cat(hit) if want_hits else torch.empty(0, dtype=torch.bool)
        outputs = torch.cat(loss).sum(), torch.cat(distance), hits
        ctx.mark_non_differentiable(outputs[1], outputs[2])
        return outputs  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        d_hidden, d_latents, d_w2 = ctx.saved_tensors
        scale = grads[0]
        return d_hidden * scale, d_latents * scale, d_w2 * scale, *([None] * 9)


def _loss_and_gradient_(
    q: Tensor, top_ids: Tensor, top_probs: Tensor, labels: Tensor, row_weights: Tensor, weights: LossWeights
) -> tuple[Tensor, Tensor]:
    """Weighted loss per row [n] and `‖p - q‖₁` [n]; q [n, V] is overwritten by the loss's gradient in the logits.

    A token of p that cannot be drafted (-1) has q = 0 whatever the logits are, and a label like that no cross-entropy.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    drafted, labelled = (top_ids >= 0).to(wide), (labels >= 0).to(wide)
    top_ids, labels = top_ids.clamp_min(0), labels.clamp_min(0)
    q_top, p_top = q.gather(1, top_ids).to(wide) * drafted, top_probs.to(wide)
    q_label = q.gather(1, labels.unsqueeze(1)).squeeze(1).to(wide)
    q_rest, p_rest = 1 - q_top.sum(-1), 1 - p_top.sum(-1)
    sign, sign_rest = (q_top - p_top).sign() * drafted, (q_rest - p_rest).sign()
    # Where q has no other entries, what rounding leaves must not steer.
    sign_rest = torch.where(drafted.sum(-1) == q.shape[1], 0.0, sign_rest)
    l1 = (q_top - p_top).abs().sum(-1) + (q_rest - p_rest) * sign_rest
    cross_entropy = -q_label.clamp_min(torch.finfo(torch.float32).tiny).log() * labelled
    loss = row_weights * (weights.cross_entropy * cross_entropy + weights.total_variation * l1)
    # d l1 / d z_j = q_j (s_j - Σ s q); d CE / d z_j = q_j - [j = label]
    mean_sign = (sign * q_top).sum(-1) + sign_rest * q_rest
    dense = row_weights * (weights.cross_entropy * labelled + weights.total_variation * (sign_rest - mean_sign))
    sparse = (row_weights * weights.total_variation).unsqueeze(1) * q_top * (sign - sign_rest.unsqueeze(1))
    q.mul_(dense.unsqueeze(1).to(q.dtype))
    # On a flat view: `scatter_add_` along the vocabulary takes 200 times as long on a CPU.
    row_start = torch.arange(len(q), device=q.device) * q.shape[1]
    flat = q.view(-1)
    flat.index_add_(0, (top_ids + row_start.unsqueeze(1)).view(-1), sparse.to(q.dtype).view(-1))
    flat.index_add_(0, labels + row_start, (-weights.cross_entropy * row_weights * labelled).to(q.dtype))
    return loss, l1


def vocabulary_sample(
    top_ids: Tensor, labels: Tensor, vocab_size: int, extra: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A part of the vocabulary that stands for all of it in one batch.

    It holds every token of `top_ids` and `labels` (-1 is none), and `extra` others drawn uniformly. The others' logits
    are raised by the log of how many tokens each stands for, so that the softmax normaliser keeps its expectation.

    Returns:
        int64 [M] ascending token ids, and float32 [M] what to add to their logits.
    """
    needed = torch.zeros(vocab_size, dtype=torch.bool)
    for ids in (top_ids.flatten(), labels):
        needed[ids[ids >= 0]] = True
    others = (~needed).nonzero().squeeze(1)
    drawn = others[torch.randperm(len(others), generator=generator)[:extra]]
    ids = torch.cat([needed.nonzero().squeeze(1), drawn]).sort().values
    stands_for = math.log(len(others) / len(drawn)) if len(drawn) else 0.0
    return ids, torch.where(needed[ids], 0.0, stands_for)


def vocabulary_loss(
    hidden: Tensor,
    latents: Tensor,
    w2: Tensor,
    lm_head: Tensor,
    top_ids: Tensor,
    top_probs: Tensor,
    labels: Tensor,
    row_weights: Tensor,
    weights: LossWeights,
    chunk: int = 256,
    want_hits: bool = True,
    sample: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`Σ_n row_weights[n] (0.1·CE_n + 0.9·‖p_n - q_n‖₁)` with `q = softmax(lm_head·hidden + w2·latents)`.

    `p` is given by its C most likely tokens; all others count as one bucket, which bounds the true distance from
    below (C = V is exact). The matmuls run in the dtype of `lm_head`.

    Args:
        hidden: [N, H]; latents: [N, r]; w2: [V, r]. These receive gradients. V counts what can be drafted.
        lm_head: [V, H], frozen.
        top_ids: int64 [N, C], rows of `lm_head`, -1 for a token of the target's that has none; top_probs: [N, C],
            probabilities.
        labels: int64 [N], likewise; row_weights: [N].
        sample: from `vocabulary_sample`; None sums over the whole vocabulary.

    Returns:
        The loss (scalar), `‖p - q‖₁` [N] and whether argmax q is the label, bool [N] ([0] unless
        `want_hits`, it costs a pass over the logits); both without gradient.
    """
    offset = None
    if sample is not None:
        ids, offset = sample
        w2, lm_head = w2[ids], lm_head[ids]
        top_ids, labels = (torch.where(t < 0, t, torch.searchsorted(ids, t)) for t in (top_ids, labels))
    return _VocabularyLoss.apply(
        hidden, latents, w2, lm_head, top_ids, top_probs, labels, row_weights, offset, weights, chunk, want_hits
    )


def confidence_loss(logits: Tensor, l1: Tensor, row_weights: Tensor) -> Tensor:
    """Binary cross-entropy against `α = 1 - ½‖p - q‖₁` (no gradient through α). All [N] -> scalar."""
    alpha = (1 - 0.5 * l1.detach()).clamp(0, 1).to(logits.dtype)
    return (row_weights * F.binary_cross_entropy_with_logits(logits, alpha, reduction="none")).sum()
