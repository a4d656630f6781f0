"""The frontier: throughput per device over the speed each user gets, and what one arm has over another along it.

A curve is an arm's measured points in the order of the load, joined by straight lines on logarithmic axes.
`throughput_at` reads the most throughput at which users still get a given speed; beyond its fastest point an arm never
gets there, and that is said instead of a ratio.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sglang_dspark.ab.compare import THROUGHPUT, USER_SPEED, Table
from sglang_dspark.evaluate.comparison import draws, student_interval
from sglang_dspark.evaluate.statistics import geometric_mean

Point = tuple[float, float]
"""(tok/s per user, tok/s per device)."""

RESAMPLES = 1_000
OUT_OF_REACH = "out of reach"
# Of the resamples, how many may lie beyond an arm's end before there is no interval.
_MAY_MISS = 0.05


def best_at_least(curve: Sequence[Point], least: float) -> float | None:
    """The largest second coordinate on the curve where the first is at least `least`; None where it never is.

    Args:
        curve: points in the order of the load; interpolated between neighbours on logarithmic axes.
        least: of the first coordinate.
    """
    reached = [y for x, y in curve if x >= least]
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if min(x0, x1) < least < max(x0, x1):
            part = math.log(least / x0) / math.log(x1 / x0)
            reached.append(y0 * (y1 / y0) ** part)
    return max(reached, default=None)


def throughput_at(curve: Sequence[Point], user_speed: float) -> float | None:
    """Throughput with users at `user_speed` or faster."""
    return best_at_least(curve, user_speed)


def user_speed_at(curve: Sequence[Point], throughput: float) -> float | None:
    """Users' speed with a throughput of at least `throughput`."""
    return best_at_least([(y, x) for x, y in curve], throughput)


def pareto(curve: Sequence[Point]) -> list[bool]:
    """Which points no other point of the curve beats in both coordinates."""
    return [not any(a >= x and b >= y and (a, b) != (x, y) for a, b in curve) for x, y in curve]


class Curves:
    """The curves of all arms at one temperature, of every repetition.

    Args:
        table: of cells.
        scenarios: keys and loads of the closed loop, ascending by load.
        arms: to draw.
    """

    def __init__(self, table: Table, scenarios: Sequence[tuple[str, float]], arms: Sequence[str]) -> None:
        self.loads = [load for _, load in scenarios]
        self.repetitions = [
            r for r in table.repetitions
            if all(self._values(table, arm, key, r) is not None for arm in arms for key, _ in scenarios)
        ]  # fmt: skip
        self._logs = {
            arm: np.log(
                [
                    [point for key, _ in scenarios if (point := self._values(table, arm, key, r)) is not None]
                    for r in self.repetitions
                ]
            )
            for arm in arms
        }

    @staticmethod
    def _values(table: Table, arm: str, key: str, repetition: int) -> Point | None:
        speed = table.value(arm, key, repetition, USER_SPEED)
        throughput = table.value(arm, key, repetition, THROUGHPUT)
        return None if speed is None or throughput is None else (speed, throughput)

    def curve(self, arm: str, chosen: Sequence[int] | None = None) -> list[Point]:
        """The geometric mean over repetitions, all or the chosen ones."""
        logs = self._logs[arm] if chosen is None else self._logs[arm][list(chosen)]
        return [(float(x), float(y)) for x, y in np.exp(logs.mean(axis=0))]

    def compare(self, arm: str, baseline: str, at: float, what: str) -> dict[str, Any]:
        """The ratio of two arms at an SLO point.

        Args:
            arm, baseline: numerator and denominator.
            at: tok/s per user where `what` is "throughput", tok/s per device where it is "user_speed".
            what: is compared there.

        Returns:
            `status`: `measured`, `out of reach` with `who`, or `edge of reach` (a ratio without an interval, since
            resamples lie beyond an arm's end); `values` of both arms, `ratio` where there is one, and `at_least` where
            the numerator is only known to be so high.
        """
        read = throughput_at if what == "throughput" else user_speed_at
        mine, theirs = read(self.curve(arm), at), read(self.curve(baseline), at)
        found: dict[str, Any] = {"arm": arm, "baseline": baseline, "what": what, "at": at, "values": [mine, theirs]}
        found |= {"ratio": None, "at_least": False}
        if mine is None or theirs is None:
            return found | {
                "status": OUT_OF_REACH,
                "who": [name for name, value in ((arm, mine), (baseline, theirs)) if value is None],
            }
        # Below the curve's slow end more load would still be served at that speed: what was measured is a lower bound.
        axis = 0 if what == "throughput" else 1
        found["at_least"] = at < min(point[axis] for point in self.curve(arm))
        pairs = len(self.repetitions)
        drawn = []
        for chosen in draws(pairs, RESAMPLES):
            a, b = read(self.curve(arm, chosen), at), read(self.curve(baseline, chosen), at)
            if a is not None and b is not None:
                drawn.append(a / b)
        if pairs < 2 or len(drawn) < (1 - _MAY_MISS) * RESAMPLES:
            return found | {"status": "edge of reach", "value": mine / theirs}
        comparison = student_interval(mine / theirs, np.array(drawn), pairs)
        return found | {"status": "measured", "ratio": asdict(comparison.ratio), "p": comparison.p}


def slo_points(curves: Curves, arm: str, baseline: str, axis: int, count: int = 3) -> list[float]:
    """Round values, where the baseline is and the arm gets to (axis 0: user speed, 1: throughput); may be none."""
    mine, theirs = ([point[axis] for point in curves.curve(name)] for name in (arm, baseline))
    low, high = min(theirs), min(max(mine), max(theirs))
    if low >= high:
        return []
    found = []
    for i in range(count):
        value = low * (high / low) ** ((i + 1) / (count + 1))
        rounded = _round(value)
        found.append(rounded if low <= rounded <= high else value)
    return sorted(set(found))


def _round(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.2g}")


def frontier(
    table: Table,
    scenarios: Sequence[tuple[str, float]],
    arms: Sequence[str],
    candidate: str,
    slo: Sequence[float] = (),
    headline: str | None = None,
) -> dict[str, Any] | None:
    """Curves, and the candidate against every other arm along them; None without a repetition that is complete.

    Args:
        table, scenarios, arms: as in `Curves`.
        candidate: numerator of the ratios.
        slo: tok/s per user to read at; by default inside the range of `headline`.
        headline: the arm that default points are chosen for.
    """
    curves = Curves(table, scenarios, arms)
    if not curves.repetitions:
        return None
    others = [arm for arm in arms if arm != candidate] if candidate in arms else []
    points, rates = list(slo), []
    if others:
        shown = headline if headline in others else others[0]
        points = points or slo_points(curves, candidate, shown, 0)
        rates = slo_points(curves, candidate, shown, 1)
    drawn = {}
    for arm in arms:
        curve = curves.curve(arm)
        drawn[arm] = [
            {"load": load, "user": x, "throughput": y, "pareto": best}
            for load, (x, y), best in zip(curves.loads, curve, pareto(curve), strict=True)
        ]
    return {
        "curves": drawn,
        "repetitions": len(curves.repetitions),
        "slo": [curves.compare(candidate, other, at, "throughput") for other in others for at in points],
        "matched": [curves.compare(candidate, other, at, "user_speed") for other in others for at in rates],
        "on_or_above": {other: _on_or_above(curves, candidate, other) for other in others},
    }


def _on_or_above(curves: Curves, arm: str, other: str) -> dict[str, Any]:
    """Whether the arm's frontier lies on or above the other's, at every speed the other was measured at.

    `below`: those speeds at which the arm's throughput is lower by more than the noise, or never reached.
    """
    below, worst = [], math.inf
    for speed, _ in curves.curve(other):
        found = curves.compare(arm, other, speed * 0.999, "throughput")
        if found["status"] == OUT_OF_REACH:
            below.append(speed)
        elif found["ratio"] is not None:
            worst = min(worst, found["ratio"]["value"])
            if found["ratio"]["high"] < 1:
                below.append(speed)
    return {"holds": not below, "below": below, "lowest_ratio": worst if worst < math.inf else None}


def mean_ratio(rows: Sequence[dict[str, Any]]) -> float | None:
    """Geometric mean of measured ratios; None if there is none."""
    values = [row["ratio"]["value"] for row in rows if row["ratio"] is not None]
    return geometric_mean(values) if values else None
