"""Sequential temperature scaling, and its form with offsets (section 4): left to right, earlier positions fixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit

from sglang_dspark.calibrate.metrics import ece
from sglang_dspark.calibrate.samples import Samples, folds
from sglang_dspark.schedule.calibration import CLASSES, ClassParameters
from sglang_dspark.schedule.survival import FloatArray

METHODS = ("none", "temperature", "slope-offset")
_FOLDS = 5
# Float32 confidences end here; beyond, a logit would be infinite.
_SMALLEST = 1e-7
# ECE alone hardly feels the slope of a position where few survive: a slope of 0.25 came out where others gave 0.9 to
# 1.1, with a worse ranking. A price on lost log-likelihood of this size left the cross-validated ECE where it was.
_UNLIKELY = 0.3
# Slopes outside e^±3 undo the confidence or make it a step.
_SLOPE_RANGE = 3.0


@dataclass(frozen=True)
class Curve:
    """`c'_k = σ(slope_k · logit(c_k) + offset_k)` for γ positions."""

    slope: FloatArray
    offset: FloatArray

    def confidence(self, raw: FloatArray) -> FloatArray:
        """`[N, γ]` calibrated confidences of `[N, γ]` raw ones."""
        calibrated: FloatArray = expit(self.slope * _logit(raw) + self.offset)
        return calibrated

    def survival(self, raw: FloatArray) -> FloatArray:
        """`[N, γ]` products of the calibrated confidences."""
        return np.multiply.accumulate(self.confidence(raw), axis=1)


def fit(samples: Samples, method: str) -> Curve:
    """Fit one class by one of `METHODS`.

    The ECE is piecewise smooth with many small steps, so its search starts from the maximum-likelihood fit of the
    decision at k among rows that survived to k - 1. A position with fewer than two kinds of outcome keeps its
    confidence.
    """
    z = _logit(samples.confidence)
    slope, offset = np.ones(samples.gamma), np.zeros(samples.gamma)
    product = np.ones(len(samples))
    for k in range(samples.gamma):
        seen = samples.has_label(k + 1)
        y = samples.survived(k + 1)[seen].astype(np.float64)
        reached = samples.survived(k)[seen]
        decided = y[reached]
        if method != "none" and len(decided) and 0.0 < decided.mean() < 1.0:
            position = _Position(z[seen, k], product[seen], y, reached)
            slope[k], offset[k] = position.temperature() if method == "temperature" else position.slope_offset()
        product = product * expit(slope[k] * z[:, k] + offset[k])
    return Curve(slope, offset)


def choose(samples: Samples) -> tuple[str, dict[str, list[float]]]:
    """The method whose out-of-fold predictions have the smallest mean ECE, and each method's ECE per position.

    A richer method must win on requests it was not fitted on; the raw confidences take part.
    """
    fold = folds(samples, _FOLDS)
    scores: dict[str, list[float]] = {}
    for method in METHODS:
        a = np.zeros_like(samples.confidence)
        for number in range(_FOLDS):
            held = fold == number
            if held.any():
                a[held] = fit(samples.select(~held), method).survival(samples.confidence[held])
        scores[method] = [
            ece(a[seen, k], samples.survived(k + 1)[seen])
            for k in range(samples.gamma)
            if (seen := samples.has_label(k + 1)).any()
        ]
    return min(METHODS, key=lambda method: float(np.mean(scores[method]))), scores


def fit_class(samples: Samples) -> tuple[ClassParameters, dict[str, list[float]]]:
    """Parameters of the class that all rows of `samples` belong to, with the cross-validated ECE of each method.

    Raises:
        ValueError: no row, or rows of several classes.
    """
    kinds = np.unique(samples.kind)
    if len(kinds) != 1:
        raise ValueError(f"fit_class: expected rows of one class, got {len(kinds)}")
    method, scores = choose(samples)
    plain = fit(samples, "temperature")
    curve = plain if method == "temperature" else fit(samples, method)
    return (
        ClassParameters(
            CLASSES[int(kinds[0])].name,
            tuple(curve.slope.tolist()),
            tuple(curve.offset.tolist()),
            method,
            tuple((1.0 / plain.slope).tolist()),
            len(samples),
            len(np.unique(samples.group)),
        ),
        scores,
    )


class _Position:
    """The search at one position; earlier ones are fixed."""

    def __init__(self, z: FloatArray, before: FloatArray, y: FloatArray, reached: npt.NDArray[np.bool_]) -> None:
        self._z, self._before, self._y = z, before, y
        self._z_decided, self._decided = z[reached], y[reached]

    def temperature(self) -> tuple[float, float]:
        likeliest = minimize_scalar(lambda s: self._loss(s, 0.0), bounds=_BOUNDS[0], method="bounded")
        step = 0.05
        grid = np.clip(likeliest.x + step * np.arange(-14, 15), *_BOUNDS[0])
        errors = [self._cost(s, 0.0, likeliest.fun) for s in grid]
        best = grid[int(np.argmin(errors))]
        refined = minimize_scalar(
            lambda s: self._cost(s, 0.0, likeliest.fun), bounds=(best - step, best + step), method="bounded"
        )
        return float(np.exp(refined.x if refined.fun < min(errors) else best)), 0.0

    def slope_offset(self) -> tuple[float, float]:
        likeliest = minimize(lambda v: self._loss(v[0], v[1]), [0.0, 0.0], method="L-BFGS-B", bounds=_BOUNDS)
        simplex = likeliest.x + np.array([[0.0, 0.0], [0.15, 0.0], [0.0, 0.15]])
        refined = minimize(
            lambda v: self._cost(v[0], v[1], likeliest.fun),
            likeliest.x,
            method="Nelder-Mead",
            bounds=_BOUNDS,
            options={"initial_simplex": np.clip(simplex, *np.transpose(_BOUNDS)), "maxfev": 80, "xatol": 1e-3},
        )
        start = self._cost(likeliest.x[0], likeliest.x[1], likeliest.fun)
        best = refined.x if refined.fun < start else likeliest.x
        return float(np.exp(best[0])), float(best[1])

    def _loss(self, log_slope: float, offset: float) -> float:
        """Mean negative log-likelihood of the decisions at this position."""
        margin = np.exp(log_slope) * self._z_decided + offset
        return float((np.logaddexp(0.0, margin) - self._decided * margin).mean())

    def _cost(self, log_slope: float, offset: float, least: float) -> float:
        """ECE of the survival, and a little for being unlikely; `least` is the smallest loss."""
        survival = self._before * expit(np.exp(log_slope) * self._z + offset)
        return ece(survival, self._y) + _UNLIKELY * (self._loss(log_slope, offset) - least)


_BOUNDS = ((-_SLOPE_RANGE, _SLOPE_RANGE), (-8.0, 8.0))


def _logit(confidence: FloatArray) -> FloatArray:
    z: FloatArray = logit(np.clip(confidence, _SMALLEST, 1.0 - _SMALLEST))
    return z
