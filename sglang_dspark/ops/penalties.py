"""Penalties that depend on the tokens emitted so far, evaluated at every row of a verified block."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Penalties:
    """One request's penalties over its own output. `stop_ids` stay forbidden until `min_new_tokens` were emitted."""

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    min_new_tokens: int = 0
    stop_ids: tuple[int, ...] = ()

    @property
    def active(self) -> bool:
        return self.frequency != 0 or self.presence != 0 or self.repetition != 1 or self.min_new_tokens > 0


def penalise_rows(logits: torch.Tensor, output: list[int], drafted: list[int], penalties: Penalties) -> None:
    """Penalise the rows of one request's block in place.

    Row k predicts the token after `output + drafted[:k]`, and is penalised for exactly those tokens, as plain decoding
    would be there: additive penalties first, then the repetition penalty (divide a positive logit, multiply another).

    Args:
        logits: `[ℓ + 1, V]`.
        output: tokens the request has emitted, the anchor last.
        drafted: the ℓ drafted tokens being verified.

    Raises:
        ValueError: `logits` does not have one row more than `drafted`.
    """
    if logits.shape[0] != len(drafted) + 1:
        raise ValueError(f"logits: expected {len(drafted) + 1} rows, got {logits.shape[0]}")
    counts = torch.bincount(
        torch.tensor(output, dtype=torch.int64, device=logits.device), minlength=logits.shape[1]
    ).float()
    stop_ids = list(penalties.stop_ids)
    for k, row in enumerate(logits):
        if k > 0:
            counts[drafted[k - 1]] += 1
        seen = counts > 0
        row -= penalties.frequency * counts + penalties.presence * seen
        if len(output) + k < penalties.min_new_tokens:
            row[stop_ids] = float("-inf")
        if penalties.repetition != 1:
            factor = torch.where(row > 0, 1 / penalties.repetition, penalties.repetition)
            row.copy_(torch.where(seen, row * factor, row))
