"""How well probabilities match what happened: ECE with its noise floor, Brier score, AUROC, bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.evaluate.statistics import Interval, cluster_bootstrap
from sglang_dspark.schedule.survival import FloatArray, IntArray

BINS = 15
_FLOOR_DRAWS = 200
_RANKS = 200


@dataclass(frozen=True)
class Reliability:
    """The bins of a reliability diagram, each with the same number of samples: mean prediction, mean outcome, count."""

    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class Figures:
    """One cell of the report: a position of a class, in one domain or over all.

    Attributes:
        samples, groups: rows with a label, and the requests or prompts they come from.
        ece: expected calibration error of the survival a_k, 15 equal-mass bins. Its interval carries the noise floor
            too: both it and the figure lie above the truth by about that much.
        floor: mean ECE of a perfect predictor with these predictions; floor_95 its 95th percentile.
        brier: mean squared error of a_k. auroc: how well a_k ranks; NaN where only one outcome occurred.
        bias: mean a_k minus the share that survived.
        rate: the share that survived.
        confidence_error: mean absolute error of c_k against the decision at k, where k - 1 survived.
    """

    samples: int
    groups: int
    ece: Interval
    floor: float
    floor_95: float
    brier: float
    auroc: Interval
    bias: Interval
    rate: float
    confidence_error: float

    def as_json(self) -> dict[str, Any]:
        def spread(value: Interval) -> list[float | None]:
            return [None if np.isnan(x) else round(x, 6) for x in (value.value, value.low, value.high)]

        return {
            "samples": self.samples,
            "groups": self.groups,
            "ece": spread(self.ece),
            "floor": round(self.floor, 6),
            "floor_95": round(self.floor_95, 6),
            "brier": round(self.brier, 6),
            "auroc": spread(self.auroc),
            "bias": spread(self.bias),
            "rate": round(self.rate, 6),
            "confidence_error": None if np.isnan(self.confidence_error) else round(self.confidence_error, 6),
        }


def ece(predicted: FloatArray, outcome: npt.NDArray[Any], bins: int = BINS) -> float:
    """Expected calibration error with equal-mass bins: `Σ_b |Σ_{i in b} (p_i - y_i)| / N`.

    Args:
        predicted: `[N]` probabilities.
        outcome: `[N]` 0 or 1.

    Raises:
        ValueError: no sample.
    """
    if not len(predicted):
        raise ValueError("ece: no sample")
    order = np.argsort(predicted, kind="stable")
    gap = predicted[order] - outcome[order]
    return float(np.abs(np.add.reduceat(gap, _starts(len(gap), bins))).sum() / len(gap))


def noise_floor(predicted: FloatArray, bins: int = BINS, seed: int = 0) -> tuple[float, float]:
    """Mean and 95th percentile of the ECE a perfect predictor shows with these predictions, by simulation."""
    ordered = np.sort(predicted)
    starts, generator = _starts(len(ordered), bins), np.random.default_rng(seed)
    drawn = [
        np.abs(np.add.reduceat(ordered - (generator.random(len(ordered)) < ordered), starts)).sum() / len(ordered)
        for _ in range(_FLOOR_DRAWS)
    ]
    return float(np.mean(drawn)), float(np.percentile(drawn, 95))


def reliability(predicted: FloatArray, outcome: npt.NDArray[Any], bins: int = BINS) -> Reliability:
    """The points of a reliability diagram."""
    order = np.argsort(predicted, kind="stable")
    starts = _starts(len(order), bins)
    count = np.diff([*starts, len(order)])
    means = [
        np.add.reduceat(np.asarray(values, dtype=np.float64)[order], starts) / count for values in (predicted, outcome)
    ]
    return Reliability(tuple(means[0].tolist()), tuple(means[1].tolist()), tuple(count.tolist()))


def auroc(predicted: FloatArray, outcome: npt.NDArray[Any]) -> float:
    """Probability that a survivor was ranked above a non-survivor, ties half; NaN where one of them is missing."""
    _, tied, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2.0
    positive = outcome.astype(bool)
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below:
        return float("nan")
    return float((rank[tied][positive].sum() - above * (above + 1) / 2) / (above * below))


def figures(
    predicted: FloatArray, outcome: npt.NDArray[Any], group: IntArray, confidence: FloatArray, reached: npt.NDArray[Any]
) -> Figures:
    """All figures of one cell; intervals from resampling groups.

    Args:
        predicted: `[N]`, a_k.
        outcome: `[N]`, whether positions 1..k were all accepted.
        group: `[N]`, which rows belong together.
        confidence: `[N]`, c_k.
        reached: `[N]`, whether positions 1..k-1 were all accepted.

    Raises:
        ValueError: no sample.
    """
    y = outcome.astype(np.float64)
    floor, floor_95 = noise_floor(predicted)
    _, member = np.unique(group, return_inverse=True)
    groups = int(member.max()) + 1
    order = np.argsort(predicted, kind="stable")

    # Bins are those of the whole sample in every resample.
    bin_of = np.empty(len(order), dtype=np.int64)
    bin_of[order] = np.searchsorted(_starts(len(order), BINS), np.arange(len(order)), side="right") - 1
    gaps = _by_group(member, groups, bin_of, BINS, predicted - y)
    sizes = np.bincount(member, minlength=groups).astype(np.float64)[:, None]
    error = cluster_bootstrap(
        np.hstack([gaps, sizes]), lambda t: np.abs(t[..., :-1]).sum(axis=-1) / np.maximum(t[..., -1], 1.0)
    )
    bias = cluster_bootstrap(np.hstack([gaps, sizes]), lambda t: t[..., :-1].sum(axis=-1) / np.maximum(t[..., -1], 1.0))
    at = reached.astype(bool)
    return Figures(
        len(y),
        groups,
        Interval(ece(predicted, outcome), error.low, error.high),
        floor,
        floor_95,
        float(np.mean((predicted - y) ** 2)),
        _auroc_interval(predicted, y, member, groups, order),
        bias,
        float(y.mean()),
        float(np.abs(confidence[at] - y[at]).mean()) if at.any() else float("nan"),
    )


def _auroc_interval(
    predicted: FloatArray, y: FloatArray, member: IntArray, groups: int, order: npt.NDArray[np.intp]
) -> Interval:
    value = auroc(predicted, y)
    if np.isnan(value):
        return Interval(value, value, value)
    # Ranked in 200 steps, so that a resample needs no sort; what ties within a step counts half.
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) * _RANKS // len(order)
    above = _by_group(member, groups, rank, _RANKS, y)
    below = _by_group(member, groups, rank, _RANKS, 1.0 - y)

    def area(totals: FloatArray) -> FloatArray:
        up, down = totals[..., :_RANKS], totals[..., _RANKS:]
        beneath = np.cumsum(down, axis=-1) - down / 2.0
        pairs = up.sum(axis=-1) * down.sum(axis=-1)
        return (up * beneath).sum(axis=-1) / np.maximum(pairs, 1.0)

    drawn = cluster_bootstrap(np.hstack([above, below]), area)
    return Interval(value, drawn.low, drawn.high)


def _by_group(member: IntArray, groups: int, column: IntArray, columns: int, weight: FloatArray) -> FloatArray:
    """`[groups, columns]` sums of `weight`."""
    flat: FloatArray = np.bincount(member * columns + column, weights=weight, minlength=groups * columns).astype(float)
    return flat.reshape(groups, columns)


def _starts(count: int, bins: int) -> npt.NDArray[np.int64]:
    """First index of each of at most `bins` bins of equal size."""
    return np.unique(np.arange(min(bins, count), dtype=np.int64) * count // min(bins, count))
