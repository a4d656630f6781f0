"""What is known of the rounds that ran: fuses, metrics and the state that `GET /dspark/state` shows."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.engine.metrics import Metrics
from sglang_dspark.engine.rounds import Round
from sglang_dspark.schedule.adaptive import Adaptive
from sglang_dspark.schedule.calibration import class_index
from sglang_dspark.schedule.fuses import EarlyAcceptance, LoadFuse, Unusable
from sglang_dspark.schedule.live_calibration import LiveCalibration
from sglang_dspark.schedule.survival import IntArray

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

logger = logging.getLogger(__name__)

# Seconds between two writings of the state; metrics are handed over as often.
_PERIOD = 0.5
# Share of a new round in the running means of the state.
_SHARE = 0.05


class Watch:
    """Follows finished rounds. Nothing it knows is newer than the last round that ended.

    Args:
        gamma: draft tokens of a block.
        facts: what does not change while the server runs: policy, profile, calibration.
        state_path: file for the state, replaced as a whole; None: not written.
        metrics: where counts go; None: nowhere.
    """

    def __init__(
        self,
        gamma: int,
        facts: dict[str, Any] | None = None,
        state_path: Path | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._gamma, self._facts, self._path, self._metrics = gamma, facts or {}, state_path, metrics
        self._load, self._early, self._unusable = LoadFuse(), EarlyAcceptance(), Unusable(gamma)
        self._live = LiveCalibration(gamma)
        self._misread = False
        self._next = 0.0
        self._rounds: Counter[str] = Counter()
        self._lengths = np.zeros(gamma + 1, dtype=np.int64)
        self._verified = np.zeros(gamma, dtype=np.int64)
        self._accepted = np.zeros(gamma, dtype=np.int64)
        self._parts: Counter[str] = Counter()
        self._means: dict[str, float] = {}

    def most(self, free: float) -> int | None:
        """Draft tokens of a request that the KV pool allows, `free` of it being unused; None: no limit."""
        before = self._load.most
        most = self._load.update(free)
        if most != before:
            allowed = "no limit" if most is None else f"{most} draft tokens a request"
            logger.warning("DSpark: %.0f %% of the KV pool is free: %s", 100 * free, allowed)
        return most

    def trusted(
        self, confidence: Floats, limits: IntArray, temperatures: Floats, coupled: Flags
    ) -> tuple[Floats, IntArray]:
        """Confidences `[R, γ]` and limits `[R]` to plan with: less where a class's calibration was found wrong."""
        kind = class_index(temperatures, coupled)
        return self._live.substitute(confidence, kind), self._live.cap(limits, kind)

    def drafted(self, usable: IntArray) -> None:
        """`[R]` leading positions of each block that could be drawn."""
        if self._unusable.saw(usable):
            logger.warning("DSpark: the draft's output was not finite; such positions are not verified (counted)")

    def finished(self, done: Round, adaptive: Adaptive | None) -> None:
        """A round and what it emitted."""
        assert done.lengths is not None
        accepted = done.accepted()
        if done.drafts and self._early.saw(done.lengths, accepted):
            self._misread = True
            logger.error(
                "DSpark: hardly any first draft token is accepted; the checkpoint's layout was probably read wrongly "
                "(sample_from_anchor, target_layer_ids), or the draft belongs to another target"
            )
        if done.calibrated is not None:
            assert done.limits is not None
            kind = class_index(done.temperatures, done.coupled)
            for change in self._live.observe(done.calibrated, kind, accepted, done.limits, done.explored):
                logger.warning("DSpark: %s", change.message)
        self._rounds[done.mode] += 1
        self._lengths += np.bincount(done.lengths, minlength=self._gamma + 1)
        positions = np.arange(self._gamma)
        self._verified += (positions < done.lengths[:, None]).sum(axis=0)
        self._accepted += (positions < accepted[:, None]).sum(axis=0)
        self._parts.update(done.parts)
        self._mean("requests", len(done.requests))
        self._mean("budget", done.tokens - len(done.requests))
        self._mean("tokens", float(accepted.sum()) + len(done.requests))
        if done.seconds is not None:
            self._mean("seconds", done.seconds)
            if done.decision is not None:
                self._mean("predicted_seconds", done.decision.predicted(done.tokens))
                if done.calibrated is not None:
                    tested = positions < done.lengths[:, None]
                    survivals = np.multiply.accumulate(done.calibrated, axis=1)
                    self._mean("predicted_tokens", float(survivals[tested].sum()) + len(done.requests))
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PERIOD
            self._publish(done, adaptive)

    def _mean(self, name: str, value: float) -> None:
        self._means[name] = value + (1 - _SHARE) * (self._means.get(name, value) - value)

    def state(self, done: Round, adaptive: Adaptive | None) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        state: dict[str, Any] = {
            **self._facts,
            "time": time.time(),
            "mode": done.mode,
            "rounds": dict(self._rounds),
            "verify_lengths": self._lengths.tolist(),
            "verified_by_position": self._verified.tolist(),
            "accepted_by_position": self._accepted.tolist(),
            "part_seconds": dict(self._parts),
            "recent": self._means,
            "fuses": {
                "kv_pool": self._load.most,
                "unusable_positions": self._unusable.positions,
                "checkpoint_misread": self._misread,
                "calibration": self._live.figures(),
            },
        }
        if adaptive is not None:
            guard, count = adaptive.guard, len(done.requests)
            rates = [] if adaptive.forecast is None or not count else guard.rates(count, adaptive.forecast).tolist()
            state["guard"] = {
                "requests": count,
                "tokens_per_second": rates,
                "corrections": [guard.correction(count, m) for m in range(self._gamma + 2)],
                "probes": guard.probes,
                "changes": guard.changes,
                "slo_met": guard.slo_met,
                "acceptance_over_predicted": adaptive.traffic.optimism.tolist(),
            }
        return state

    def _publish(self, done: Round, adaptive: Adaptive | None) -> None:
        if self._metrics is None and self._path is None:
            return
        state = self.state(done, adaptive)
        if self._metrics is not None:
            self._metrics.publish(state)
        if self._path is not None:
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(state))
            partial.rename(self._path)
