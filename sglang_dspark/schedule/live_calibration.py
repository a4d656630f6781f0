"""Do the confidences still tell the truth? ECE on explored rows, and a fuse for each class of requests (section 6).

A fuse has three positions: the calibrated confidences are used; the class's measured acceptance is used in their place;
at most one token is verified. It reads rounds that are over, so its decisions may change the next ones freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.schedule.calibration import CLASSES
from sglang_dspark.schedule.survival import FloatArray, IntArray

BINS = 15
# E|N(0, 1)| and the variance of |N(0, 1)|.
_ABSOLUTE_MEAN = float(np.sqrt(2.0 / np.pi))
_ABSOLUTE_VARIANCE = 1.0 - 2.0 / np.pi


class Trust(IntEnum):
    """What is believed about a class, from the best to the worst."""

    CONFIDENCE = 0
    MEASURED = 1
    ONE_TOKEN = 2


@dataclass(frozen=True)
class FuseLimits:
    """When a fuse acts. ECE here is in excess of its noise floor.

    Attributes:
        measured, one_token: ECE above which a class falls to `MEASURED` and to `ONE_TOKEN`.
        sigmas: by how many standard deviations of a perfect predictor's ECE it must be above.
        recovered: share of a limit below which the ECE must stay to rise again.
        patience: evaluations in a row that must agree to rise; one is enough to fall.
        rows: rows with a label a position needs to be judged at all.
    """

    measured: float = 0.05
    one_token: float = 0.15
    sigmas: float = 4.0
    recovered: float = 0.6
    patience: int = 3
    rows: int = 256


@dataclass(frozen=True)
class Change:
    """A fuse that moved. `message` is for the log."""

    name: str
    before: Trust
    after: Trust
    position: int
    ece: float
    floor: float

    @property
    def message(self) -> str:
        what = {
            Trust.CONFIDENCE: "its calibrated confidences are used again",
            Trust.MEASURED: "its measured acceptance is used in place of the confidences",
            Trust.ONE_TOKEN: "at most one token of its requests is verified",
        }[self.after]
        text = (
            f"{self.name} requests: live ECE {self.ece:.1%} at position {self.position} (a perfect predictor shows "
            f"{self.floor:.1%}); {what}"
        )
        if self.after > self.before:
            text += (
                ". The calibration does not fit this traffic: record it with serve --dspark-record DIR, then run "
                "python -m sglang_dspark calibrate --records DIR"
            )
        return text


class LiveCalibration:
    """Running ECE per class and position over the latest explored rows, and the fuse of every class.

    Bins are equally wide, so that a row costs one addition each; the noise floor is that of a normal approximation.
    Rows are gathered, and counted when there are `chunk` of them and `every` rounds had some, since counting costs the
    same for any number. A class's window is its latest `chunks` chunks.

    Args:
        gamma: draft tokens a round.
        limits: when a fuse acts.
        chunk, chunks: rows a chunk, and chunks a window.
        every: rounds with explored rows between two countings, at least.
    """

    def __init__(
        self, gamma: int, limits: FuseLimits | None = None, *, chunk: int = 64, chunks: int = 32, every: int = 8
    ) -> None:
        self.gamma = gamma
        self.limits = limits or FuseLimits()
        self._chunk, self._every, self._waited = chunk, every, 0
        # Per class and position: rows that reached and passed, and per bin Σ(a - y) and Σ a(1 - a).
        self._width = 3 + 2 * BINS
        self._ring = np.zeros((len(CLASSES), chunks, gamma, self._width))
        self._total = np.zeros((len(CLASSES), gamma, self._width))
        self._slot = np.zeros(len(CLASSES), dtype=np.int64)
        self._filled = np.zeros(len(CLASSES), dtype=np.int64)
        self._trust = np.zeros(len(CLASSES), dtype=np.int64)
        self._agreeing = np.zeros(len(CLASSES), dtype=np.int64)
        self._rates = np.full((len(CLASSES), gamma), 0.5, dtype=np.float32)  # `acceptance`, as of the last chunk
        self._pending = 0
        self._confidence = np.zeros((2 * chunk, gamma))
        self._rows = np.zeros((2 * chunk, 3), dtype=np.int64)  # class, accepted, limit

    def observe(
        self,
        confidence: npt.NDArray[np.float32],
        kind: IntArray,
        accepted: npt.NDArray[Any],
        limit: npt.NDArray[Any],
        explored: npt.NDArray[np.bool_],
    ) -> list[Change]:
        """Take in a round that is over; rows that were not explored are ignored.

        Args:
            confidence: `[R, γ]`, calibrated.
            kind: `[R]`, from `class_index`.
            accepted: `[R]`, accepted draft tokens.
            limit: `[R]`, the most that could be verified; positions behind it have no label.
            explored: `[R]`, whether min(γ, limit) was verified by a choice made before the draft.

        Returns:
            The fuses that moved.
        """
        if not explored.any():
            return []
        chosen = explored.nonzero()[0]
        count = len(chosen)
        if self._pending + count > len(self._rows):
            space = self._pending + count + self._chunk
            self._confidence = np.resize(self._confidence, (space, self.gamma))
            self._rows = np.resize(self._rows, (space, 3))
        place = slice(self._pending, self._pending + count)
        self._confidence[place] = confidence[chosen]
        self._rows[place, 0] = kind[chosen]
        self._rows[place, 1] = accepted[chosen]
        self._rows[place, 2] = limit[chosen]
        self._pending += count
        self._waited += 1
        return self._count() if self._pending >= self._chunk and self._waited >= self._every else []

    def trust(self, kind: IntArray) -> IntArray:
        """`[R]`, a `Trust` for each request."""
        return self._trust[kind]

    def substitute(self, confidence: npt.NDArray[np.float32], kind: IntArray) -> npt.NDArray[np.float32]:
        """`[R, γ]` confidences to plan with: those given, or a class's measured acceptance where its fuse says so."""
        distrusted = self._trust[kind] > Trust.CONFIDENCE
        if not distrusted.any():
            return confidence
        replaced = confidence.copy()
        # Measured rates stand in for numbers only: a broken confidence stays broken.
        rates = np.where(np.isnan(confidence), confidence, self._rates[kind])
        replaced[distrusted] = rates[distrusted]
        return replaced

    def cap(self, limits: IntArray, kind: IntArray) -> IntArray:
        """`[R]` limits, at most 1 where a class has fallen that far."""
        fallen = self._trust[kind] == Trust.ONE_TOKEN
        return np.where(fallen, np.minimum(limits, 1), limits) if fallen.any() else limits

    def acceptance(self) -> FloatArray:
        """`[classes, γ]`: share of the rows that reached a position and passed it; a half where nothing was seen."""
        reached, passed = self._total[:, :, 1], self._total[:, :, 2]
        return (passed + 1.0) / (reached + 2.0)

    def figures(self) -> dict[str, dict[str, Any]]:
        """For metrics, of each class seen: the fuse's level and, per position, rows, ECE, floor and acceptance.

        ECE and floor are None where there are too few rows to judge by.
        """
        error, floor, _ = self._errors()
        rates = self.acceptance()
        judged = self._total[:, :, 0] >= self.limits.rows
        return {
            CLASSES[c].name: {
                "level": int(self._trust[c]),
                "rows": self._total[c, :, 0].astype(int).tolist(),
                "ece": [float(x) if known else None for x, known in zip(error[c], judged[c], strict=True)],
                "floor": [float(x) if known else None for x, known in zip(floor[c], judged[c], strict=True)],
                "acceptance": rates[c].tolist(),
            }
            for c in range(len(CLASSES))
            if self._total[c, 0, 0] > 0
        }

    def _count(self) -> list[Change]:
        """Add the pending rows to their classes' windows, and judge the classes that got some."""
        c, rows = self._confidence[: self._pending], self._rows[: self._pending]
        self._pending = self._waited = 0
        kind, accepted = rows[:, 0], rows[:, 1:2]
        positions = np.arange(1, self.gamma + 1)
        a = np.multiply.accumulate(c, axis=1)
        # NaN and what is out of range have no label, from there on.
        seen = (positions <= rows[:, 2:3]) & (a >= 0.0) & (a <= 1.0)
        a = np.where(seen, a, 0.0)
        survived = accepted >= positions
        cell = kind[:, None] * self.gamma + (positions - 1)
        bins = np.minimum((a * BINS).astype(np.int64), BINS - 1)
        flat = cell * self._width
        index = np.stack([flat, flat + 1, flat + 2, flat + 3 + bins, flat + 3 + BINS + bins])
        weight = np.stack(
            [seen, seen & (accepted >= positions - 1), seen & survived, (a - survived) * seen, a * (1.0 - a)]
        )
        added = np.bincount(index.ravel(), weight.ravel(), minlength=self._total.size).reshape(self._total.shape)
        counts = np.bincount(kind, minlength=len(CLASSES))
        touched = counts.nonzero()[0].tolist()
        for number in touched:
            self._ring[number, self._slot[number]] += added[number]
            self._total[number] += added[number]
            self._filled[number] += counts[number]
            if self._filled[number] >= self._chunk:
                self._turn(number)
        self._rates = self.acceptance().astype(np.float32)
        return [change for number in touched if (change := self._judge(number)) is not None]

    def _turn(self, number: int) -> None:
        """Start the class's next chunk, in place of its oldest."""
        self._slot[number] = (self._slot[number] + 1) % self._ring.shape[1]
        self._filled[number] = 0
        self._ring[number, self._slot[number]] = 0.0
        # Summed afresh: differences would drift.
        self._total[number] = self._ring[number].sum(axis=0)

    def _forget(self, number: int) -> None:
        """Keep the latest quarter of the class's window: what came before the traffic changed says nothing of it."""
        ring = self._ring[number]
        ages = (self._slot[number] - np.arange(len(ring))) % len(ring)
        ring[ages >= max(1, len(ring) // 4)] = 0.0
        self._total[number] = ring.sum(axis=0)
        self._rates[number] = self.acceptance()[number]

    def _errors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """`[classes, γ]` each: ECE, what a perfect predictor shows on average, and its standard deviation."""
        rows = np.maximum(self._total[:, :, 0], 1.0)
        gaps, variance = self._total[:, :, 3 : 3 + BINS], self._total[:, :, 3 + BINS :]
        variance = np.maximum(variance, 0.0)
        return (
            np.abs(gaps).sum(axis=2) / rows,
            _ABSOLUTE_MEAN * np.sqrt(variance).sum(axis=2) / rows,
            np.sqrt(_ABSOLUTE_VARIANCE * variance.sum(axis=2)) / rows,
        )

    def _judge(self, number: int) -> Change | None:
        """Let the class fall at once when it must, and rise a step after enough evaluations that agree."""
        error, floor, deviation = (values[number] for values in self._errors())
        judged = self._total[number, :, 0] >= self.limits.rows
        if not judged.any():
            return None
        sure = np.where(judged, error - floor - self.limits.sigmas * deviation, -1.0)
        excess = np.where(judged, error - floor, -1.0)
        before = Trust(int(self._trust[number]))
        deserved = Trust(sum(float(sure.max()) > limit for limit in (self.limits.measured, self.limits.one_token)))
        after = before
        if deserved > before:
            after = deserved
        elif before > Trust.CONFIDENCE:
            limit = self.limits.one_token if before == Trust.ONE_TOKEN else self.limits.measured
            calm = bool(excess.max() < self.limits.recovered * limit)
            self._agreeing[number] = self._agreeing[number] + 1 if calm else 0
            if self._agreeing[number] >= self.limits.patience:
                after = Trust(before - 1)
        if after == before:
            return None
        self._trust[number], self._agreeing[number] = after, 0
        if after > before:
            self._forget(number)
        worst = int(excess.argmax())
        return Change(CLASSES[number].name, before, after, worst + 1, float(error[worst]), float(floor[worst]))
