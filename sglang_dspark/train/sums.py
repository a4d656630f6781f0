"""What the parts of a step add up to, in one process and over all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.train.data import Row
from sglang_dspark.train.loss import position_weights
from sglang_dspark.train.ranks import Ranks


class StepSums:
    """What the parts of a step add up to: losses, and per position hits and acceptance (1 - ½‖p - q‖₁)."""

    def __init__(self, gamma: int) -> None:
        self.losses = torch.zeros(2, dtype=torch.float64)
        self.positions = torch.zeros(3, gamma, dtype=torch.float64)  # labels, hits, acceptance
        self.counts_hits = False

    def add(self, loss: Tensor, confidence: Tensor, l1: Tensor, hit: Tensor, slot: Tensor) -> None:
        self.losses += torch.stack([loss.detach(), confidence.detach()]).double()
        values = [torch.ones_like(l1), hit.to(l1.dtype) if len(hit) else torch.zeros_like(l1), 1 - 0.5 * l1]
        self.positions.index_add_(1, slot, torch.stack(values).double())
        self.counts_hits = bool(len(hit))

    def numbers(self, ranks: Ranks) -> dict[str, Any]:
        """A line of the learning curve; `tau` is the accept length that the acceptance implies."""
        losses, (labels, hits, accepted) = ranks.sum(self.losses), ranks.sum(self.positions)
        alphas = accepted / labels.clamp_min(1)
        return {
            "loss": float(losses[0]),
            "confidence_loss": float(losses[1]),
            "tau": 1.0 + float(alphas.cumprod(0).sum()),
            "hit": [round(h, 4) for h in (hits / labels.clamp_min(1)).tolist()] if self.counts_hits else [],
            "alpha": [round(a, 4) for a in alphas.tolist()],
        }


def label_weight(row: Row, anchors: Tensor, gamma: int, decay: float) -> float:
    """Sum of `exp(-(k-1) / decay)` over the labelled positions of a row's blocks."""
    labels = (len(row.tokens) - 1 - anchors).clamp_max(gamma)
    return float(position_weights(torch.arange(gamma), decay).cumsum(0)[labels - 1].sum())
