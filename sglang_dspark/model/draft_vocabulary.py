"""The reduced vocabulary of a draft: the part of the target's tokens that it may propose.

Draft token i is target token `i + d2t[i]`; `t2d` marks the target tokens that have a draft token. Both are stored under
these names in published EAGLE-3 and speculators checkpoints. Base logits and `W2` have a row for each draft token; `W1`
keeps one for each target token, because the anchor can be any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sglang_dspark.model.checkpoint import CheckpointError


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """Draft tokens in the order of their target ids.

    Attributes:
        ids: int64 [Vd], ascending: the target token of each draft token.
        vocab_size: V, tokens of the target.
    """

    ids: Tensor
    vocab_size: int

    @classmethod
    def from_offsets(cls, offsets: Tensor, vocab_size: int, where: str) -> DraftVocabulary:
        """From a checkpoint's `d2t`, [Vd].

        Raises:
            CheckpointError: it does not name ascending tokens of the target; `where` is named.
        """
        ids = offsets.long() + torch.arange(len(offsets), device=offsets.device)
        rising = bool((ids[1:] > ids[:-1]).all())
        if not len(ids) or not rising or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
            raise CheckpointError(f"{where}: d2t does not map to ascending tokens of the target's {vocab_size}")
        return cls(ids, vocab_size)

    @property
    def offsets(self) -> Tensor:
        """`d2t`, int64 [Vd]."""
        return self.ids - torch.arange(len(self.ids), device=self.ids.device)

    @property
    def member(self) -> Tensor:
        """`t2d`, bool [V]."""
        return self.index >= 0

    @cached_property
    def index(self) -> Tensor:
        """int64 [V]: the draft token of each target token, -1 where it has none."""
        index = torch.full((self.vocab_size,), -1, dtype=torch.int64, device=self.ids.device)
        index[self.ids] = torch.arange(len(self.ids), device=self.ids.device)
        return index

    def expand(self, rows: Tensor) -> Tensor:
        """Rows of draft tokens `[Vd, ...]` in their target's places `[V, ...]`, zero elsewhere."""
        return rows.new_zeros((self.vocab_size, *rows.shape[1:])).index_copy_(0, self.ids.to(rows.device), rows)


def most_frequent(
    texts: Iterable[Sequence[int]], size: int, vocab_size: int, always: Iterable[int] = ()
) -> tuple[DraftVocabulary, float]:
    """The `size` tokens that the texts use most (the lower id of equal ones), those of `always` among them.

    Returns:
        The vocabulary, and the share of the texts' tokens that it covers.
    """
    counts = Counter(token for text in texts for token in text)
    wanted = set(always)
    order = sorted(range(vocab_size), key=lambda token: (token not in wanted, -counts[token], token))
    chosen = sorted(order[:size])
    covered = sum(counts[token] for token in chosen) / max(1, counts.total())
    return DraftVocabulary(torch.tensor(chosen, dtype=torch.int64), vocab_size), covered
