"""The distribution plain decoding samples from: temperature, then top-k, top-p and min-p on the same sorted row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Sorting whole rows of a large vocabulary dominates a CPU round; almost every filter is decided by its top.
_SHORTLIST = 1024


@dataclass(frozen=True)
class Filters:
    """Per-row filters, each `[M]`: `top_k` int (at least 1), `top_p` and `min_p` float32. None: no row uses it."""

    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None

    @property
    def active(self) -> bool:
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


def target_probs(logits: torch.Tensor, temperatures: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Probabilities after temperature and filters, renormalised.

    The filters are joint, as in the engine's samplers: all are judged on the row sorted once, top-p on the cumulative
    sum before top-k cuts it, min-p relative to the largest entry.

    Args:
        logits: `[M, V]`, penalties, masks and biases already in.
        temperatures: `[M]` float32, above 0.

    Returns:
        `[M, V]` float32.
    """
    return filtered(torch.softmax(logits.float() / temperatures.unsqueeze(1), dim=-1), filters)


def filtered(p: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Rows `[M, V]` float32 of probabilities after the filters, renormalised."""
    if not filters.active or p.shape[0] == 0:
        return p
    size = min(_SHORTLIST, p.shape[1])
    ordered, index = p.topk(size, dim=-1)
    keep = _kept(ordered, filters)
    if size < p.shape[1] and bool(keep[:, -1].any()):
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        keep = _kept(ordered, filters)
    kept = torch.where(keep, ordered, 0.0)
    kept = kept / kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter_(1, index, kept)


def _kept(ordered: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Which entries of rows sorted in descending order survive; `[M, S]` bool, the first always."""
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if filters.top_k is not None:
        keep &= torch.arange(ordered.shape[1], device=ordered.device) < filters.top_k.unsqueeze(1)
    if filters.top_p is not None:
        keep &= (ordered.cumsum(dim=-1) - ordered) <= filters.top_p.unsqueeze(1)
    if filters.min_p is not None:
        keep &= ordered >= ordered[:, :1] * filters.min_p.unsqueeze(1)
    keep[:, 0] = True
    return keep
