"""The adaptive policy: mode by the guard before the draft, lengths by the prefix scheduler after it.

Used by the engine's planner and, as it is, by the replay of recorded rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sglang_dspark.ops.schedule import best_budget, causal_scan, lagged_topk
from sglang_dspark.schedule import policies
from sglang_dspark.schedule.forecast import LAG, Forecast, RoundCost, Traffic
from sglang_dspark.schedule.guard import Guard
from sglang_dspark.schedule.survival import FloatArray, IntArray

Scheduler = Literal["causal", "lagged"]

# Rounds a forecast is used for while the batch stays the same.
_REFRESH = 16


@dataclass(frozen=True)
class Decision:
    """What was settled before the draft.

    Attributes:
        mode: 0..γ: that many draft tokens of every request (0: no draft is run); γ + 1: the scheduler.
        explored: `[R]` bool, requests that verify everything by this choice, made before the draft.
        budget: draft tokens of the lagged scheduler, all requests together; None for the causal one.
        seconds: `[R (1 + γ) + 1]`, predicted time of the round by total of verified tokens.
        undrafted: predicted time of the round without a draft.
        forecast: what the mode was chosen by; None for an empty batch.
    """

    mode: int
    explored: npt.NDArray[np.bool_]
    budget: int | None
    seconds: FloatArray
    undrafted: float
    forecast: Forecast | None

    def predicted(self, tokens: int) -> float:
        """Time of the round if it verifies `tokens`."""
        return self.undrafted if self.mode == 0 else float(self.seconds[tokens])


class Adaptive:
    """State between rounds: the traffic's recent confidences, the guard, and, for the lagged scheduler, old ones.

    Args:
        cost: measured times of a round.
        gamma: draft tokens of a block.
        guard: chooses the mode.
        scheduler: `causal` reads this round's confidences as far as it admits; `lagged` sets its budget by those of
            two rounds ago.
        explore: part of the rounds that verify everything, for calibration; drawn before the draft.
        seed: of that lot; the same on every rank.
        agree: makes the first rank's numbers those of its whole group, which measure times of their own.
    """

    def __init__(
        self,
        cost: RoundCost,
        gamma: int,
        guard: Guard,
        scheduler: Scheduler,
        explore: float = 0.0,
        seed: int = 0,
        agree: Callable[[IntArray], IntArray] | None = None,
    ) -> None:
        self.guard = guard
        self.traffic = Traffic(gamma)
        self.forecast: Forecast | None = None
        self._cost, self._gamma, self._scheduler, self._explore = cost, gamma, scheduler, explore
        self._agree = agree
        self._random = np.random.Generator(np.random.Philox(seed))
        self._age, self._batch = 0, 0
        self._old: dict[Hashable, list[npt.NDArray[np.float32]]] = {}

    def before(self, requests: Sequence[Hashable], context: int, most: int | None = None) -> Decision:
        """Settle the next round's mode.

        Args:
            requests: what tells the running requests apart.
            context: committed KV tokens of all of them.
            most: draft tokens of a request that fuses allow.
        """
        count = len(requests)
        seconds = self._cost.round_seconds(count, context, self._gamma)
        if count == 0:
            return Decision(0, np.zeros(0, dtype=np.bool_), None, seconds, 0.0, None)
        if self.forecast is None or count != self._batch or self._age >= _REFRESH:
            self.forecast = self.traffic.forecast(self._cost, count, context, crosses=self._scheduler == "lagged")
            self._batch, self._age = count, 0
        self._age += 1
        mode = self.guard.choose(count, self.forecast, most)
        if self._agree is not None:
            mode = int(self._agree(np.array([mode], dtype=np.int64))[0])
        # Whole rounds: a few longer requests in every round would push costs with steps over the next one each time.
        if self._random.random() < self._explore and mode > 0 and most is None:
            mode = self._gamma
        # Where everything is verified by the mode, every request shows what a calibration needs.
        explored = np.full(count, mode == self._gamma)
        budget = None
        if mode == self.guard.adaptive and self._scheduler == "lagged":
            budget = self._lagged_budget(requests, seconds)
        undrafted = self._cost.undrafted_seconds(count, context)
        return Decision(mode, explored, budget, seconds, undrafted, self.forecast)

    def lengths(self, decision: Decision, confidence: npt.NDArray[np.float32], limits: IntArray) -> IntArray:
        """`[R]` verify lengths, from this round's calibrated confidences `[R, γ]` within `limits` `[R]`."""
        if decision.mode <= self._gamma:
            return policies.fixed(decision.mode, limits)
        if decision.budget is not None:
            return lagged_topk(confidence, decision.budget, limits)
        return causal_scan(confidence, decision.seconds, limits)

    def after(
        self,
        requests: Sequence[Hashable],
        decision: Decision,
        confidence: npt.NDArray[np.float32] | None,
        lengths: IntArray,
        accepted: IntArray,
        seconds: float | None,
    ) -> None:
        """A round is over: calibrated confidences (None without a draft), `[R]` lengths, `[R]` accepted, its time."""
        count = len(requests)
        if confidence is not None:
            self.traffic.saw(confidence, lengths, accepted)
            if self._scheduler == "lagged":
                kept = {r: [*self._old.get(r, [])[1 - LAG :], c] for r, c in zip(requests, confidence, strict=True)}
                self._old = kept
        if decision.forecast is not None:
            times = None if seconds is None else (decision.predicted(count + int(lengths.sum())), seconds)
            self.guard.ran(count, decision.mode, count + int(accepted.sum()), decision.forecast, times)

    def _lagged_budget(self, requests: Sequence[Hashable], seconds: FloatArray) -> int:
        mean = self.traffic.mean_survival
        expected = mean / np.concatenate([[1.0], np.maximum(mean[:-1], 1e-9)])
        old = [self._old[r][0] if r in self._old else expected for r in requests]
        everything = np.full(len(old), self._gamma, dtype=np.int64)
        return best_budget(np.clip(np.array(old), 0.0, 1.0), seconds, everything)
