"""Bookkeeping of ragged verify rows: request r owns rows start_r .. start_r + ℓ_r."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RaggedRows:
    """Attributes: `lengths`, `start`: `[B]` int64. `request`, `offset`: `[M]` int64, M = `total` = Σ(1 + ℓ_r)."""

    lengths: torch.Tensor
    start: torch.Tensor
    request: torch.Tensor
    offset: torch.Tensor
    total: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str) -> RaggedRows:
        """From the verify lengths ℓ_r >= 0 (draft tokens, the anchor's own row not counted)."""
        verify = torch.tensor(lengths, dtype=torch.int64, device=device) + 1
        start = verify.cumsum(0) - verify
        total = sum(lengths) + len(lengths)
        request = torch.repeat_interleave(torch.arange(len(lengths), device=device), verify, output_size=total)
        offset = torch.arange(total, device=device) - start[request]
        return cls(verify - 1, start, request, offset, total)
