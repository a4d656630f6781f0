"""What each mode promises for the next rounds, from confidences and acceptance of rounds that are over.

A mode is a way to choose every request's verify length: the same number for all (0: nothing is drafted), or the prefix
scheduler. Modes are compared by expected tokens a second; nothing here may see the round it decides about.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sglang_dspark.schedule.survival import FloatArray, IntArray, survival

# Rows of confidences that are remembered: enough for a mean within a few percent, few enough to follow the traffic.
ROWS = 192
# A confidence that is a round older than the last is what an overlapped engine can have when it plans.
LAG = 2
# Survival by position that a server starts with, before it has drafted anything: a middling draft.
PRIOR_CONFIDENCE = 0.6
# Tokens that count as predicted rightly: of all positions at the start, of each one always, of all always.
_PRIOR, _LEAST = 16.0, 4.0


class RoundCost(Protocol):
    """Measured time of a round, as `schedule/cost.py` has it."""

    def round_seconds(self, requests: int, context: int, gamma: int) -> FloatArray:
        """`[R (1 + γ) + 1]` seconds of a whole round with its draft, by total of verified tokens."""
        ...

    def undrafted_seconds(self, requests: int, context: int) -> float:
        """Seconds of the round that drafts and verifies nothing."""
        ...


@dataclass(frozen=True)
class Forecast:
    """Of one batch size; mode m < γ + 1 verifies m draft tokens of every request, mode γ + 1 is the scheduler.

    Attributes:
        tokens: `[γ + 2]`, expected tokens of a round, all requests together.
        slowest: `[γ + 2]`, those of the request that gets least.
        seconds: `[γ + 2]`, the round's time by the cost model.
        budget: draft tokens the scheduler would verify.
    """

    tokens: FloatArray
    slowest: FloatArray
    seconds: FloatArray
    budget: float


class Traffic:
    """The most recent confidences of the requests served, calibrated, and how acceptance compared with them.

    Args:
        gamma: positions of a block.
    """

    def __init__(self, gamma: int, rows: int = ROWS) -> None:
        self._gamma = gamma
        self._rows: deque[npt.NDArray[np.float32]] = deque(maxlen=rows)
        # As if a few rows had come out exactly as predicted, so that the first real ones do not swing it.
        self._predicted = np.full(gamma, _PRIOR / gamma)
        self._accepted = self._predicted.copy()

    @property
    def known(self) -> bool:
        """False until something was drafted."""
        return bool(self._rows)

    def saw(self, confidence: npt.NDArray[np.float32], lengths: npt.ArrayLike, accepted: npt.ArrayLike) -> None:
        """A round that drafted: calibrated confidences `[R, γ]`, verify lengths `[R]`, accepted draft tokens `[R]`."""
        self._rows.extend(confidence)
        a = survival(confidence)
        verified = np.arange(self._gamma) < np.asarray(lengths)[:, None]
        hit = np.arange(self._gamma) < np.asarray(accepted)[:, None]
        keep = 0.5 ** (len(confidence) / (2 * ROWS))
        self._predicted = keep * self._predicted + (a * verified).sum(axis=0)
        self._accepted = keep * self._accepted + hit.sum(axis=0)

    @property
    def optimism(self) -> FloatArray:
        """`[γ]`, accepted over predicted tokens of late by position, within a factor of 2: what calibration misses.

        Deep positions are accepted too rarely to judge alone; they lean on all of them.
        """
        overall = (self._accepted.sum() + _LEAST) / (self._predicted.sum() + _LEAST)
        return np.clip((self._accepted + _PRIOR * overall) / (self._predicted + _PRIOR), 0.5, 2.0)

    @property
    def mean_survival(self) -> FloatArray:
        """`[γ]`, what a request that was not drafted yet is expected to do."""
        return survival(np.array(self._rows)).mean(axis=0) if self._rows else self._prior

    @property
    def _prior(self) -> FloatArray:
        return PRIOR_CONFIDENCE ** np.arange(1, self._gamma + 1, dtype=np.float64)

    def forecast(self, cost: RoundCost, requests: int, context: int, crosses: bool) -> Forecast:
        """Of `requests` requests that are like the recent ones, with `context` KV tokens together.

        Args:
            crosses: whether the scheduler finds the best budget past steps of the cost curve, for confidences that are
                two rounds old (the lagged one), or stops where one more token does not pay.
        """
        gamma = self._gamma
        times = cost.round_seconds(requests, context, gamma)
        # Recent rows, dealt into batches of this size: how confidences are spread in a batch is what a schedule uses.
        rows = np.array(self._rows) if self._rows else np.full((1, gamma), PRIOR_CONFIDENCE, dtype=np.float32)
        batches = max(1, len(rows) // requests)
        dealt = np.resize(rows, (batches, requests, gamma)).astype(np.float32)
        a = survival(dealt.reshape(-1, gamma)).reshape(dealt.shape) * self.optimism
        # Corrected by position they may rise, which no survival does.
        a = np.minimum.accumulate(np.minimum(a, 1.0), axis=2)
        fixed = 1.0 + np.concatenate([np.zeros((batches, requests, 1)), np.cumsum(a, axis=2)], axis=2)
        budgets, scheduled = _scheduled(a, times, crosses)
        seconds = times[requests * np.arange(1, gamma + 2)]
        seconds[0] = cost.undrafted_seconds(requests, context)
        return Forecast(
            tokens=np.append(fixed.sum(axis=1).mean(axis=0), scheduled.sum(axis=1).mean()),
            slowest=np.append(fixed.min(axis=1).mean(axis=0), scheduled.min(axis=1).mean()),
            seconds=np.append(seconds, times[requests + budgets].mean()),
            budget=float(budgets.mean()),
        )


def _scheduled(a: FloatArray, seconds: FloatArray, crosses: bool) -> tuple[IntArray, FloatArray]:
    """Budget `[batches]` of the scheduler for survivals `[batches, R, γ]`, and each request's tokens `[batches, R]`."""
    batches, requests, gamma = a.shape
    # Survivals never rise along a request, so the K largest of a batch are a prefix of every request.
    best_first = -np.sort(-a.reshape(batches, -1), axis=1)
    tokens = requests + np.concatenate([np.zeros((batches, 1)), np.cumsum(best_first, axis=1)], axis=1)
    rates = tokens / seconds[requests : requests * (1 + gamma) + 1]
    if crosses:
        # Two rounds old when it is used, as the rows are dealt in the order they came.
        budgets = np.roll(np.argmax(rates, axis=1), LAG)
    else:
        stops = np.append(rates[:, 1:] <= rates[:, :-1], np.ones((batches, 1), dtype=bool), axis=1)
        budgets = np.argmax(stops, axis=1)
    cut = np.where(budgets > 0, best_first[np.arange(batches), np.maximum(budgets, 1) - 1], np.inf)
    return budgets, 1.0 + np.where(a >= cut[:, None, None], a, 0.0).sum(axis=2)
