"""Draft context of rounds without a draft: kept back, and written for many rounds at once before anything reads it.

A round at ℓ = 0 needs the target's hidden states in the draft's KV only when a draft is run again. Written one token a
request and round, the projections are read from memory for very few rows each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

# Tokens kept back at most: enough to fill the projections, and little memory.
MOST_TOKENS = 256


class ContextQueue:
    """Hidden states that are not in the draft's KV yet.

    All of them belong to the requests of the last `put`, whose slots nobody else can get meanwhile: when the requests
    change, what is kept back is written first.

    Args:
        write: takes hidden states `[N, D]`, KV slots `[N]` and positions `[N]`, and writes them at once.
    """

    def __init__(self, write: Write, most_tokens: int = MOST_TOKENS) -> None:
        self._write, self._most = write, most_tokens
        self._requests: list[Any] = []
        self._kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._tokens = 0

    def put(self, requests: Sequence[Any], hidden: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Keep back a round's states; they are copied, since captured graphs write into the same memory every round."""
        if len(requests) != len(self._requests) or any(
            a is not b for a, b in zip(requests, self._requests, strict=True)
        ):
            self.flush()
            self._requests = list(requests)
        self._kept.append((hidden.clone(), slots.clone(), positions.clone()))
        self._tokens += len(hidden)
        if self._tokens >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write everything kept back. Call it before a draft, a prefill, or a round of the engine's own."""
        if self._kept:
            hidden, slots, positions = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
            self._kept, self._tokens = [], 0
            self._write(hidden, slots, positions)
