"""Inputs of the vocabulary-sharded draft: built alike by every rank's process and by the test that compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import draft_cases
import torch
from torch import Tensor

from sglang_dspark.ops.draft_block import ConfidenceHead, DraftFilter

BATCH, GAMMA, HIDDEN, RANK = 3, 5, 12, 20


@dataclass(frozen=True)
class Case:
    name: str
    vocab: int
    support: int
    kind: str = "vanilla"
    dtype: torch.dtype = torch.float32
    whole_w2: bool = False
    greedy: bool = False
    filters: bool = False
    levels: int = 0  # distinct base logits; few make ties across the shards
    spoil: bool = False

    def base(self) -> Tensor:
        g = torch.Generator().manual_seed(self.vocab + self.support)
        base = torch.randn(BATCH, GAMMA, self.vocab, generator=g) * 2
        if self.levels:
            base = torch.randint(0, self.levels, base.shape, generator=g).float()
        if self.spoil:
            base[0, 2, 1] = float("nan")
            base[1, 0, self.vocab - 1] = float("inf")
            base[2, 3] = float("-inf")
            base[2, :, : self.vocab // 2] = float("-inf")  # the first ranks have nothing there
        return base.to(self.dtype)

    def arguments(self) -> list[Any]:
        g = torch.Generator().manual_seed(5)
        head = draft_cases.make_head(self.kind, self.vocab, RANK, HIDDEN, dtype=self.dtype)
        return [
            torch.randint(0, self.vocab, (BATCH,), generator=g),
            torch.randn(BATCH, GAMMA, HIDDEN, generator=g).to(self.dtype),
            head,
            ConfidenceHead(torch.randn(1, HIDDEN + RANK, generator=g) * 0.2, torch.tensor([0.1]), True),
            None if self.greedy else torch.tensor([1.0, 0.0, 0.7]),
            None if self.greedy else draft_cases.make_noise(BATCH),
        ]

    def filter(self) -> DraftFilter | None:
        if not self.filters:
            return None
        g = torch.Generator().manual_seed(6)
        mask = torch.randint(-(2**31), 2**31, (BATCH, GAMMA, (self.vocab + 31) // 32), generator=g)
        return DraftFilter(torch.tensor([3, 9, 40]), torch.tensor([0.9, 1.0, 0.5]), mask.to(torch.int32))


BF16 = torch.bfloat16
CASES = [
    Case("sharded W2", 1009, 64),
    Case("whole W2", 1009, 64, whole_w2=True),
    Case("bfloat16", 1000, 32, dtype=BF16),
    Case("gated head", 331, 16, kind="gated", dtype=BF16),
    Case("rnn head", 331, 16, kind="rnn"),
    Case("greedy", 331, 16, greedy=True),
    Case("ties across shards", 331, 40, levels=3),
    Case("one value everywhere", 331, 150, levels=1, whole_w2=True),
    Case("C larger than a shard", 100, 70),
    Case("C larger than the vocabulary", 31, 500),
    Case("a token or two a shard", 5, 3),
    Case("filters", 331, 48, filters=True),
    Case("NaN, inf and rows without a token", 331, 48, spoil=True),
    Case("NaN with a support above a shard", 40, 33, spoil=True, whole_w2=True),
]


def bounds(vocab: int, ranks: int, even: bool) -> tuple[int, ...]:
    """Even shards round up, as the engine's embedding does; uneven ones give the first rank one token."""
    if even:
        size = -(-vocab // ranks)
        return (*(min(r * size, vocab) for r in range(ranks)), vocab)
    return (0, *(1 + (vocab - 1) * r // (ranks - 1) for r in range(ranks - 1)), vocab)
