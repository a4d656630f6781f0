"""The verify lengths of a profiling run: every amount of work a batch can be asked for, in shuffled order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from sglang_dspark.schedule.survival import IntArray

# Amounts between nothing and everything; more would only add rounds, the cost in between is interpolated.
STEPS = 5


@dataclass(frozen=True)
class SweepPoint:
    """What one round is asked to do.

    Attributes:
        lengths: `[R]` int64 verify lengths.
        drafts: False for the round that skips its draft forward.
    """

    lengths: IntArray
    drafts: bool

    @property
    def tokens(self) -> int:
        return len(self.lengths) + int(self.lengths.sum())


@dataclass
class Sweep:
    """Deals out the points for the batch sizes that come along, each point once before any comes again.

    The round that skips its draft comes twice: one kind among many, and what all the others are compared with.

    Args:
        gamma: most draft tokens of a request.
        seed: of the order, which must not repeat a pattern that something else in the machine has.
    """

    gamma: int
    seed: int = 0
    _waiting: dict[int, list[SweepPoint]] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next(self, requests: int) -> SweepPoint:
        """The point of the next round with `requests` requests, at least 1."""
        waiting = self._waiting.setdefault(requests, [])
        if not waiting:
            all_points = points(requests, self.gamma)
            waiting += [*all_points, all_points[0]]
            self._random.shuffle(waiting)
        return waiting.pop()


def points(requests: int, gamma: int) -> list[SweepPoint]:
    """All points of a batch: the draft skipped, and every step of work, spread evenly and piled on few requests.

    The two spreads show whether the cost depends on the total alone: few tokens of many requests and the reverse.
    """
    found = [SweepPoint(np.zeros(requests, dtype=np.int64), drafts=False)]
    for budget in sorted({round(step * requests * gamma / STEPS) for step in range(STEPS + 1)}):
        even, piled = np.full(requests, budget // requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
        even[: budget % requests] += 1
        piled[: budget // gamma] = gamma
        if budget % gamma:
            piled[budget // gamma] = budget % gamma
        found.append(SweepPoint(even, drafts=True))
        if not np.array_equal(even, piled):
            found.append(SweepPoint(piled, drafts=True))
    return found
