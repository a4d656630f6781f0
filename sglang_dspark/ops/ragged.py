"""Bookkeeping of ragged verify rows: request r owns rows start_r .. start_r + ℓ_r."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_dspark.ops.host import to_device


@dataclass(frozen=True)
class RaggedRows:
    """Attributes: `lengths`, `start`: `[B]` int64. `request`, `offset`: `[M]` int64, M = `total` = Σ(1 + ℓ_r).

    `total` and `longest`, the largest ℓ_r, are known on the host.
    """

    lengths: torch.Tensor
    start: torch.Tensor
    request: torch.Tensor
    offset: torch.Tensor
    total: int
    longest: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str) -> RaggedRows:
        """From the verify lengths ℓ_r >= 0 (the anchor's own row not counted). Does not wait for a GPU."""
        verify = to_device(lengths, device) + 1
        start = verify.cumsum(0) - verify
        total = sum(lengths) + len(lengths)
        request = torch.repeat_interleave(torch.arange(len(lengths), device=device), verify, output_size=total)
        offset = torch.arange(total, device=device) - start[request]
        return cls(verify - 1, start, request, offset, total, max(lengths, default=0))
