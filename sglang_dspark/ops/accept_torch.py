"""The accept in plain torch: the same decisions as the compiled one, for devices and dtypes it does not cover."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import ACCEPT, LAST, Noise
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.seeded import seeded_pick_torch


def accept_torch(
    target_logits: Tensor,
    p: Tensor | None,
    drafted_tokens: Tensor,
    q: SparseQ | None,
    usable: Tensor,
    rows: RaggedRows,
    temperatures: Tensor | None,
    noise: Noise,
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments as `accept`, already checked. Returns the fields of `Accepted`."""
    batch_size, gamma = drafted_tokens.shape
    request, offset = rows.request, rows.offset
    logits = torch.where(target_logits.isnan(), float("-inf"), target_logits)
    position = offset.clamp(max=gamma - 1)
    proposed = offset < usable.clamp(max=gamma)[request]
    drafted = drafted_tokens[request, position]
    best = logits.argmax(dim=-1)
    greedy = torch.ones(batch_size, dtype=torch.bool, device=logits.device)
    if temperatures is not None:
        greedy = temperatures == 0
        if p is None:
            p = softmax_rows(logits, torch.where(greedy, 1.0, temperatures)[request], best)
        if noise.coupled is not None:
            # The target's own pick stands where the argmax stands for a greedy request.
            seeds, places = noise.streams[request], noise.rounds[request] + offset
            picked = seeded_pick_torch(logits, p, torch.where(greedy, 0.0, temperatures)[request], seeds, places)
            best = torch.where(noise.coupled[request], picked, best)
            greedy = greedy | noise.coupled
    passed = proposed & (best == drafted)
    if temperatures is not None:
        assert p is not None
        p_x = p.gather(1, drafted.unsqueeze(1)).squeeze(1)
        sampled = torch.zeros_like(passed)
        if q is not None:
            q_x = q.of_tokens(drafted_tokens)[request, position]
            sampled = proposed & (noise.uniform(ACCEPT, offset, request) * q_x < p_x)
        passed = torch.where(greedy[request], passed, sampled)

    # The first verified position that fails, or ℓ when none does, is where the round ends.
    failed_at = torch.where(passed | (offset >= rows.lengths[request]), gamma + 1, offset)
    end = torch.full_like(rows.lengths, gamma + 1)
    end = end.scatter_reduce(0, request, failed_at, "amin", include_self=True)
    end = torch.minimum(end, rows.lengths)
    final_row = rows.start + end
    last = best[final_row]
    if p is not None:
        weights = p[final_row]
        if q is not None and batch_size:
            everyone = torch.arange(batch_size, device=end.device)
            q_rows = q.rows(everyone, end.clamp(max=gamma - 1), weights.shape[1])
            residual = (weights - q_rows).clamp_min(0)
            # Equal p and q reject with probability 0; rounding can still bring us here, and then p is what is left.
            use = proposed[final_row] & (residual.sum(dim=-1) > 0)
            weights = torch.where(use.unsqueeze(1), residual, weights)
        last = torch.where(greedy, last, _draw(weights, noise, end, last))
    last = torch.where(passed[final_row], drafted[final_row], last)
    tokens = torch.cat([drafted_tokens, torch.zeros_like(last).unsqueeze(1)], dim=1)
    tokens = tokens.scatter(1, end.unsqueeze(1), last.unsqueeze(1))
    tokens = torch.where(torch.arange(gamma + 1, device=end.device) > end.unsqueeze(1), 0, tokens)
    return tokens, end + 1, last


def softmax_rows(logits: Tensor, temperatures: Tensor, best: Tensor) -> Tensor:
    """`[M, V]` float32; a row without a finite maximum is decided by it alone."""
    x = logits.float()
    peak = x.gather(1, best.unsqueeze(1))
    weights = ((x - peak) * (1.0 / temperatures).unsqueeze(1)).exp()
    only = torch.zeros_like(x).scatter_(1, best.unsqueeze(1), 1.0)
    return torch.where(peak.isfinite(), weights / weights.sum(dim=-1, keepdim=True), only)


def _draw(weights: Tensor, noise: Noise, position: Tensor, otherwise: Tensor) -> Tensor:
    """`[B]` int64: the first token whose cumulative weight, in float64, exceeds the uniform's share of the total."""
    everyone = torch.arange(len(weights), device=weights.device)
    cumulative = weights.clamp_min(0).cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, noise.uniform(LAST, position, everyone).unsqueeze(1) * total, right=True)
    # A product that rounds up to the total would leave the row: step back to the last weight above 0.
    last = (cumulative < total).sum(dim=-1)
    return torch.where(total.squeeze(1) > 0, torch.minimum(index.squeeze(1), last), otherwise)
