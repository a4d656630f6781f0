"""Draw from rows of weights by inverting their cumulative sum."""

from __future__ import annotations

import torch


def draw(weights: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """One index per row, with probability `weights[i, v] / Σ_v weights[i, v]`, from one fresh uniform a row.

    The sum is float64: in float32 the tail of a large vocabulary would vanish against a total near 1. An entry of
    weight 0 is never drawn.

    Args:
        weights: `[N, V]`, non-negative, every row with a positive finite sum.

    Returns:
        `[N]` int64.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.rand((weights.shape[0], 1), dtype=torch.float64, device=weights.device, generator=generator)
    target = uniform * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # uniform < 1, yet its product with the total can round up to the total: step back to the last weight above 0.
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    return torch.minimum(index, last)
