"""Which mode the next round runs in: never one that loses to a fixed choice (algorithm, "Never lose").

The cost model predicts every mode's time; what rounds really took corrects it, per batch size and mode. A mode that may
be better than it looks is tried for a few rounds at a time. All of it is decided from rounds that are over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from sglang_dspark.schedule.forecast import Forecast
from sglang_dspark.schedule.survival import FloatArray

Objective = Literal["throughput", "latency", "slo"]

# Rounds of a probe: their median is not moved by one that was disturbed.
PROBE_ROUNDS = 3
# Rounds between two probes at one batch size; doubled every time a probe changes nothing.
SHORTEST_PAUSE, LONGEST_PAUSE = 24, 768
# Without drafts nothing is learned about the traffic, so that mode is left for a look now and then whatever it seems.
LONGEST_BLIND = 256
# Requests such a look must see: confidences of a few say little, and what was seen before it may be as unlucky.
LOOK_REQUESTS = 48
# How far off a mode's rate may be, as a fraction, when one round measured it; shrinks with the square root of rounds.
DOUBT = 0.10
# The same where nothing was measured: a mode whose neighbours were, and one of the landmarks (no drafting, ℓ = 1,
# ℓ = γ, the scheduler). A table of another machine can have those wrong by any factor, so each is tried once.
DOUBT_BETWEEN, DOUBT_LANDMARK = 0.25, 1e3
# Correction of a predicted time: at most this factor either way from what all modes are off by.
MOST_CORRECTION = 8.0
# Tokens of earlier rounds count for less: half after about 350. So many rounds of one request are taken to have come
# out as forecast before anything did: the luck of fewer would tell modes apart that are alike.
_MEMORY, _PRIOR_TOKENS = 0.998, 1000.0
# Batch sizes from here on share a region with their neighbours.
_SMALL = 4


@dataclass
class _Region:
    """What was measured at about one batch size, by mode: log of real over predicted time, tokens, their forecast.

    `measured` holds the medians of `ratios`, `corrections` what follows from them for every mode.
    """

    ratios: list[deque[float]]
    measured: FloatArray
    corrections: FloatArray
    tokens: FloatArray
    expected: FloatArray
    mode: int | None = None
    rounds: int = 0
    pause: int = SHORTEST_PAUSE
    since_probe: int = 0
    since_draft: int = 0
    probing: int | None = None
    probe_left: int = 0


@dataclass
class Guard:
    """Chooses among no drafting, every fixed length, and the scheduler.

    Args:
        gamma: draft tokens of a block; modes 0..γ verify that many of every request, mode γ + 1 schedules.
        min_gain: how much better than drafting nothing another mode must promise.
        objective: `throughput`, all tokens a second; `latency`, the slowest request's; `slo`, throughput among the
            modes in which the slowest request keeps `slo` tokens a second, if there is one.
        slo: tokens a second of each request.
    """

    gamma: int
    min_gain: float = 0.02
    objective: Objective = "throughput"
    slo: float = 0.0
    slo_met: bool = True
    probes: int = 0
    changes: int = 0
    _regions: dict[int, _Region] = field(default_factory=dict)

    @property
    def adaptive(self) -> int:
        """The scheduler's number among the modes."""
        return self.gamma + 1

    def choose(self, requests: int, forecast: Forecast, most: int | None = None) -> int:
        """The mode of the next round.

        Args:
            requests: running requests.
            forecast: of this batch, from earlier rounds.
            most: the largest mode allowed now; None: all.
        """
        region = self._region(requests)
        region.rounds += 1
        region.since_probe += 1
        value = self._value(forecast, region, requests)
        if most is not None:
            value[most + 1 :] = -np.inf
        best = self._best(value, region.mode)
        if best != region.mode:
            self.changes += region.mode is not None
            # A probe that changed the mode was worth it, and so may be the next.
            region.mode, region.pause, region.since_probe = best, SHORTEST_PAUSE, 0
            region.probing = None
        chosen = self._probe(region, requests, value, best)
        region.since_draft = 0 if chosen > 0 else region.since_draft + 1
        return chosen

    def ran(self, requests: int, mode: int, tokens: int, forecast: Forecast, times: tuple[float, float] | None) -> None:
        """A round of `mode` is over.

        Args:
            tokens: what it emitted, all requests together.
            forecast: that it was chosen by.
            times: predicted for what it verified, and real, whole, in seconds; None where it was not timed.
        """
        region = self._region(requests)
        # Every mode forgets, so that one that was unlucky and is not chosen any more comes back to its forecast.
        region.tokens *= _MEMORY
        region.expected *= _MEMORY
        region.tokens[mode] += tokens
        region.expected[mode] += forecast.tokens[mode]
        if times is not None and min(times) > 0:
            region.ratios[mode].append(float(np.log(times[1] / times[0])))
            region.measured[mode] = median(region.ratios[mode])
            region.corrections = self._corrections(region.measured)

    def rates(self, requests: int, forecast: Forecast) -> FloatArray:
        """`[γ + 2]` tokens a second of each mode, corrected by what was measured."""
        region = self._region(requests)
        return self._tokens(forecast, region, requests) / self._seconds(forecast, region)

    def correction(self, requests: int, mode: int) -> float:
        """Real over predicted time of a mode, 1 where nothing was measured."""
        return float(self._region(requests).corrections[mode])

    def _value(self, forecast: Forecast, region: _Region, requests: int) -> FloatArray:
        seconds = self._seconds(forecast, region)
        if self.objective == "latency":
            return np.asarray(requests * forecast.slowest / seconds)
        value = self._tokens(forecast, region, requests) / seconds
        if self.objective == "slo":
            per_user = forecast.slowest / seconds
            kept = per_user >= self.slo
            self.slo_met = bool(kept.any())
            # None keeps the rate: as near to it as possible.
            return np.where(kept, value, -np.inf) if self.slo_met else np.asarray(requests * per_user)
        return np.asarray(value)

    def _best(self, value: FloatArray, current: int | None) -> int:
        drafting = int(np.argmax(value[1:])) + 1
        # Near-equals do not take turns.
        if current is not None and current > 0 and value[current] >= value[drafting] * (1 - self.min_gain / 2):
            drafting = current
        margin = self.min_gain if current in (None, 0) else self.min_gain / 2
        return drafting if value[drafting] > value[0] * (1 + margin) else 0

    def _probe(self, region: _Region, requests: int, value: FloatArray, best: int) -> int:
        if region.probing is not None:
            region.probe_left -= 1
            if region.probe_left > 0 and np.isfinite(value[region.probing]):
                return region.probing
            region.probing, region.since_probe = None, 0
        doubt = self._doubt(region)
        hopes = value * (1 + doubt)
        hopes[best] = value[best]
        candidate = int(np.argmax(hopes))
        blind = best == 0 and region.since_draft >= LONGEST_BLIND
        if blind:
            candidate = int(np.argmax(hopes[1:])) + 1
        first = doubt[candidate] == DOUBT_LANDMARK
        if candidate == best or not np.isfinite(hopes[candidate]):
            return best
        if not blind and region.since_probe < (SHORTEST_PAUSE if first else region.pause):
            return best
        region.since_probe = 0
        if not first:
            region.pause = min(2 * region.pause, LONGEST_PAUSE)
        self.probes += 1
        region.probing = candidate
        region.probe_left = max(PROBE_ROUNDS, LOOK_REQUESTS // requests) if blind else PROBE_ROUNDS
        return candidate

    def _doubt(self, region: _Region) -> FloatArray:
        measured = np.array([len(ratios) for ratios in region.ratios])
        doubt = np.where(measured > 0, DOUBT / np.sqrt(np.maximum(measured, 1)), DOUBT_BETWEEN)
        landmarks = np.array([0, 1, self.gamma, self.adaptive])
        doubt[landmarks[measured[landmarks] == 0]] = DOUBT_LANDMARK
        return doubt

    def _tokens(self, forecast: Forecast, region: _Region, requests: int) -> FloatArray:
        """The forecast, corrected by what came of earlier ones; one request's rounds are a noisy sample, so slowly."""
        prior = _PRIOR_TOKENS * forecast.tokens / requests
        return forecast.tokens * np.clip((region.tokens + prior) / (region.expected + prior), 0.5, 1.5)

    def _seconds(self, forecast: Forecast, region: _Region) -> FloatArray:
        return forecast.seconds * region.corrections

    def _corrections(self, measured: FloatArray) -> FloatArray:
        """What to multiply predicted times by, from logs that are NaN where a mode was not measured."""
        known = ~np.isnan(measured)
        logs = measured[known].tolist()
        # What was not tried is off by as much as its neighbours: drafting modes share the draft's error.
        fixed = np.flatnonzero(known[1 : self.gamma + 1]) + 1
        drafting = measured[1:][known[1:]].tolist()
        filled = np.where(known, measured, median(drafting or logs))
        if len(fixed):
            filled[1 : self.gamma + 1] = np.interp(np.arange(1, self.gamma + 1), fixed, measured[fixed])
        common, most = median(logs), np.log(MOST_CORRECTION)
        return np.asarray(np.exp(common + np.minimum(np.maximum(filled - common, -most), most)))

    def _region(self, requests: int) -> _Region:
        # Exact for small batches, about two regions to a doubling after that.
        key = requests if requests <= _SMALL else _SMALL + round(2 * np.log2(requests / _SMALL))
        if key not in self._regions:
            modes = self.gamma + 2
            self._regions[key] = _Region(
                ratios=[deque(maxlen=15) for _ in range(modes)],
                measured=np.full(modes, np.nan),
                corrections=np.ones(modes),
                tokens=np.zeros(modes),
                expected=np.zeros(modes),
            )
        return self._regions[key]
