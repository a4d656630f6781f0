"""Decides the candidate's weight: up the ramp while all is well, to nothing when a guardrail is crossed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_dspark.ab.live.config import Split
from sglang_dspark.ab.live.proxy import Counters
from sglang_dspark.ab.live.sequential import ConfidenceSequence
from sglang_dspark.ab.live.telemetry import Reading, mean_gap, quantile


@dataclass(frozen=True)
class Look:
    """Both fleets at one moment.

    Attributes:
        time: seconds of a clock that only goes forward.
        counters, readings: by `control` and `candidate`.
    """

    time: float
    counters: dict[str, Counters]
    readings: dict[str, Reading]


class Controller:
    """The state of a split. Pure: looks go in, weights and audit records come out.

    Args:
        split: what is promised.
        set_percent: puts the candidate's share into force.
        audit: takes a record of every decision.
    """

    def __init__(
        self, split: Split, set_percent: Callable[[float], None], audit: Callable[[dict[str, Any]], None]
    ) -> None:
        self._split, self._set, self._audit = split, set_percent, audit
        self._looks: deque[Look] = deque()
        self._step = -1
        self._since = 0.0
        self._stalled_since: float | None = None
        self._pair: Look | None = None
        self.percent = 0.0
        self.rolled_back: str | None = None
        self.sequence = ConfidenceSequence(split.test.alpha, split.test.min_pairs)

    def look(self, now: Look) -> None:
        """Take in a look and act on it."""
        self._looks.append(now)
        while len(self._looks) > 2 and now.time - self._looks[1].time >= self._split.guardrails.window_seconds:
            self._looks.popleft()
        self._test(now)
        if self.rolled_back is not None:
            return
        if (why := self._crossed(now)) is not None:
            self._change(0.0, why)
            self.rolled_back = why
        elif self._step < 0:
            if now.counters["candidate"].up:
                self._advance(now, "start of the ramp")
        elif self._step + 1 < len(self._split.ramp):
            held = now.time - self._since
            if held >= 60 * self._split.ramp[self._step].minutes:
                self._advance(now, f"held {self._split.ramp[self._step].percent:g} % for {held / 60:.1f} minutes")

    def figures(self) -> dict[str, Any]:
        """Of the window, for the audit and the screen."""
        if not self._looks:
            return {}
        old, new = self._looks[0], self._looks[-1]
        found: dict[str, Any] = {"window_seconds": round(new.time - old.time, 1)}
        for arm in ("control", "candidate"):
            before, after = old.counters[arm], new.counters[arm]
            requests = after.requests - before.requests
            found[arm] = {
                "requests": requests,
                "error_rate": (after.errors - before.errors) / requests if requests else None,
                "in_flight": after.in_flight,
                "up": after.up,
                "ttft_p99": quantile(old.readings[arm], new.readings[arm], 0.99),
                "gap_seconds": mean_gap(old.readings[arm], new.readings[arm]),
                "accept_length": new.readings[arm].accept_length,
            }
        ratio = self.sequence.ratio()
        found["speed_ratio"] = None if ratio is None else vars(ratio)
        found["speed"] = self.sequence.verdict()
        found["pairs"] = self.sequence.count
        return found

    def _advance(self, now: Look, why: str) -> None:
        self._step += 1
        self._since = now.time
        self._change(self._split.ramp[self._step].percent, why)

    def _change(self, percent: float, why: str) -> None:
        # First the weight: what is written down has happened.
        self._set(percent)
        before, self.percent = self.percent, percent
        self._audit({"from_percent": before, "to_percent": percent, "why": why, "figures": self.figures()})

    def _crossed(self, now: Look) -> str | None:
        """The guardrail that is crossed, in words."""
        if self.percent == 0:
            return None
        rails = self._split.guardrails
        mine = now.counters["candidate"]
        if not mine.up:
            return "no worker of the candidate is up"
        if (seconds := self._stalled(now)) >= rails.stalled_seconds:
            return f"{mine.in_flight} requests in flight and no byte of an answer for {seconds:.0f} s"
        found = self.figures()
        candidate, control = found["candidate"], found["control"]
        if candidate["requests"] < max(rails.min_requests, 1):
            return None
        excess = candidate["error_rate"] - (control["error_rate"] or 0.0)
        if excess > rails.error_rate:
            return f"error rate {candidate['error_rate']:.1%}, {excess:.1%} above the control's"
        slow, usual = candidate["ttft_p99"], control["ttft_p99"] or 0.0
        if slow is not None and slow > max(rails.ttft_p99_seconds, rails.ttft_p99_ratio * usual):
            return f"p99 time to the first token {slow:g} s"
        accept = candidate["accept_length"]
        if rails.accept_length and accept is not None and accept < rails.accept_length:
            return f"accept length {accept:.2f}, below {rails.accept_length:g}"
        return None

    def _stalled(self, now: Look) -> float:
        """For how long the candidate has had requests in flight and sent nothing."""
        mine = now.counters["candidate"]
        previous = self._looks[-2].counters["candidate"] if len(self._looks) > 1 else mine
        if not mine.in_flight or not previous.in_flight or mine.bytes_out != previous.bytes_out:
            self._stalled_since = None
            return 0.0
        if self._stalled_since is None:
            self._stalled_since = self._looks[-2].time if len(self._looks) > 1 else now.time
        return now.time - self._stalled_since

    def _test(self, now: Look) -> None:
        """Both fleets' mean time between tokens over an interval make a pair; speeds are compared, so the inverse."""
        if self._pair is None:
            self._pair = now
        if now.time - self._pair.time < self._split.test.interval_seconds:
            return
        gaps = [mean_gap(self._pair.readings[arm], now.readings[arm]) for arm in ("candidate", "control")]
        if gaps[0] is not None and gaps[1] is not None:
            self.sequence.add(1 / gaps[0], 1 / gaps[1])
        self._pair = now
