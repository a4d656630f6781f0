"""A round's few numbers between host and device, without waiting where that can be avoided."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: list[int], device: torch.device | str) -> Tensor:
    """`[N]` int64. On a GPU the copy is enqueued from pinned memory, so that the host does not wait for the stream."""
    if torch.device(device).type == "cpu":
        return torch.tensor(values, dtype=torch.int64)
    pinned = torch.tensor(values, dtype=torch.int64, pin_memory=torch.device(device).type == "cuda")
    return pinned.to(device, non_blocking=True)
