"""Fuses: conditions under which less is verified whatever the cost model says (algorithm, section 6).

Each is decided between rounds, from the past, and gives way again later than it acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_dspark.schedule.survival import IntArray


@dataclass
class LoadFuse:
    """Steps down all → 1 → 0 draft tokens as the free part of the KV pool shrinks.

    Drafted tokens hold slots that running requests will need; when those run out, the engine throws requests back.

    Attributes:
        most: draft tokens of a request allowed now; None: no limit.
    """

    act: tuple[float, float] = (0.06, 0.03)
    release: tuple[float, float] = (0.12, 0.06)
    rounds: int = 32
    most: int | None = None
    _calm: int = 0

    def update(self, free: float) -> int | None:
        """`free`: part of the pool in 0..1 that is free or could be. Returns `most`."""
        wanted = 0 if free < self.act[1] else 1 if free < self.act[0] else None
        if _tighter(wanted, self.most):
            self.most, self._calm = wanted, 0
        elif self.most is not None:
            enough = free > self.release[0 if self.most == 1 else 1]
            self._calm = self._calm + 1 if enough else 0
            if self._calm >= self.rounds:
                self.most, self._calm = (1 if self.most == 0 else None), 0
        return self.most


def _tighter(wanted: int | None, current: int | None) -> bool:
    return wanted is not None and (current is None or wanted < current)


@dataclass
class EarlyAcceptance:
    """Finds a checkpoint that was read wrongly: right after load, next to nothing it drafts is accepted.

    Args:
        rows: blocks to look at before judging.
        least: share of first draft tokens that any draft worth serving gets accepted.
    """

    rows: int = 256
    least: float = 0.05
    _seen: int = 0
    _accepted: int = 0

    def saw(self, lengths: IntArray, accepted: IntArray) -> bool:
        """A round's verify lengths and accepted draft tokens, `[R]` each. True once, when the judgement is bad."""
        if self._seen >= self.rows:
            return False
        tested = lengths > 0
        self._seen += int(tested.sum())
        self._accepted += int((accepted[tested] > 0).sum())
        return self._seen >= self.rows and self._accepted < self.least * self._seen


@dataclass
class Unusable:
    """Counts draft positions that were not finite, and so could not be drawn or verified."""

    gamma: int
    positions: int = 0
    requests: int = 0
    _said: bool = field(default=False)

    def saw(self, usable: IntArray) -> bool:
        """`[R]` leading positions that could be drawn. True the first time some could not."""
        short = usable < self.gamma
        self.positions += int((self.gamma - usable[short]).sum())
        self.requests += int(short.sum())
        first = bool(short.any()) and not self._said
        self._said = self._said or first
        return first
