"""The project's one statistics module: location, ratio and accept length, each with a bootstrap interval; goodness of
fit of sampled tokens, and Holm's procedure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = Sequence[float] | npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided percentile bootstrap interval."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def format(self, digits: int = 2) -> str:
        """`value [low, high]` with a fixed number of decimals."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def bootstrap(
    samples: Floats,
    statistic: Literal["mean", "median"] = "mean",
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean or median of `samples` with its interval.

    Raises:
        ValueError: no sample, or one that is not finite.
    """
    values = _finite(samples, "samples")
    resampled = values[_draws(len(values), resamples, seed)]
    if statistic == "mean":
        return _interval(float(values.mean()), resampled.mean(axis=1), confidence)
    return _interval(float(np.median(values)), np.median(resampled, axis=1), confidence)


def paired_ratio(
    numerator: Floats,
    denominator: Floats,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Geometric mean of `numerator[i] / denominator[i]`; pair i was measured side by side.

    Geometric, so that exchanging the arms gives the reciprocal. Whole pairs are resampled: what slowed both arms down
    in one repetition cancels.

    Raises:
        ValueError: lengths differ, or a value is not positive and finite.
    """
    above, below = _finite(numerator, "numerator"), _finite(denominator, "denominator")
    if len(above) != len(below):
        raise ValueError(f"paired_ratio needs pairs: {len(above)} numerators, {len(below)} denominators")
    if min(above.min(), below.min()) <= 0:
        raise ValueError("paired_ratio needs positive values")
    logs = bootstrap(np.log(above / below), confidence=confidence, resamples=resamples, seed=seed)
    return Interval(*(float(np.exp(edge)) for edge in (logs.value, logs.low, logs.high)))


def geometric_mean(values: Floats) -> float:
    """Geometric mean of positive values.

    Raises:
        ValueError: a value is not positive and finite.
    """
    positive = _finite(values, "values")
    if positive.min() <= 0:
        raise ValueError("geometric_mean needs positive values")
    return float(np.exp(np.log(positive).mean()))


def mean_accept_length(total_tokens: int, total_rounds: int) -> float:
    """Tokens that verification emitted per request and round, the bonus token counted.

    Args:
        total_tokens: output tokens without each request's first one, which the prefill emits.
        total_rounds: verification rounds, summed over requests.

    Raises:
        ValueError: there was no round: nothing was speculated, so there is no accept length.
    """
    if total_rounds <= 0:
        raise ValueError("no verification round took place, so there is no accept length")
    return total_tokens / total_rounds


def accept_length(
    tokens: Floats,
    rounds: Floats,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`mean_accept_length` over requests, with an interval from resampling requests.

    Args:
        tokens, rounds: one entry a request, as in `mean_accept_length`.
    """
    emitted, verified = _finite(tokens, "tokens"), _finite(rounds, "rounds")
    value = mean_accept_length(int(emitted.sum()), int(verified.sum()))
    draws = _draws(len(emitted), resamples, seed)
    sums = verified[draws].sum(axis=1)
    return _interval(value, emitted[draws].sum(axis=1) / np.maximum(sums, 1.0), confidence)


def cluster_bootstrap(
    sums: npt.NDArray[np.float64],
    statistic: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 1_000,
    seed: int = 0,
) -> Interval:
    """A statistic of totals with its interval, where what belongs together (a request) is resampled together.

    Args:
        sums: `[G, S]`, each cluster's share of S totals.
        statistic: from totals `[..., S]` to `[...]`.

    Raises:
        ValueError: no cluster.
    """
    clusters = len(sums)
    if not clusters:
        raise ValueError("cluster_bootstrap: no cluster to resample")
    value = float(statistic(sums.sum(axis=0)))
    return _interval(value, statistic(_cluster_weights(clusters, resamples, seed) @ sums), confidence)


def percentile(samples: Floats, percent: float) -> float:
    """Linear-interpolated percentile.

    Raises:
        ValueError: no sample, or one that is not finite.
    """
    return float(np.percentile(_finite(samples, "samples"), percent))


@dataclass(frozen=True)
class GoodnessOfFit:
    """A chi-square statistic, its degrees of freedom and its p-value."""

    statistic: float
    dof: int
    p: float


def conditional_chi_square(
    cells: npt.NDArray[np.int64],
    probabilities: npt.NDArray[np.float64],
    groups: npt.NDArray[np.int64] | None = None,
    *,
    smallest: float = 10.0,
) -> GoodnessOfFit:
    """Do draws follow their own distributions, each of which may depend on all draws before it?

    Observed minus expected counts of each group are a martingale, with covariance `Σ_i diag(p_i) - p_i p_iᵀ`; the
    statistic is the squared length of their standardised sum. With one distribution for all draws of a group it is
    Pearson's chi-square. The groups' statistics are added.

    Args:
        cells: `[N]`, what was drawn.
        probabilities: `[N, C]`, the distribution draw i follows under the hypothesis, given all that came before it.
        groups: `[N]`, known before draw i; None: one group.
        smallest: cells of a group with a smaller expected count are merged, and directions with a smaller variance are
            left out: they are not yet normally distributed.

    Raises:
        ValueError: shapes do not fit, or nothing is left to test.
    """
    from scipy.stats import chi2  # of the tests; the package itself runs without it

    if probabilities.shape[:1] != cells.shape or (groups is not None and groups.shape != cells.shape):
        raise ValueError(f"conditional_chi_square: {cells.shape} draws, {probabilities.shape} probabilities")
    labels = np.zeros_like(cells) if groups is None else groups
    statistic, dof = 0.0, 0
    for label in np.unique(labels):
        chosen = labels == label
        p = probabilities[chosen]
        merged = _merge_rare(p.sum(axis=0), smallest)
        p = p @ merged
        score = merged[cells[chosen]].sum(axis=0) - p.sum(axis=0)
        variances, axes = np.linalg.eigh(np.diag(p.sum(axis=0)) - p.T @ p)
        kept = variances >= smallest
        statistic += float(((score @ axes[:, kept]) ** 2 / variances[kept]).sum())
        dof += int(kept.sum())
    if dof == 0:
        raise ValueError("conditional_chi_square: too few draws to test anything")
    return GoodnessOfFit(statistic, dof, float(chi2.sf(statistic, dof)))


def correlation_chi_square(products: Sequence[npt.NDArray[np.float64]]) -> GoodnessOfFit:
    """Are pairs of residuals uncorrelated? One degree of freedom for each kind of pair.

    Args:
        products: for each kind, the products of two residuals; each residual has mean 0 and variance 1 under the
            hypothesis, given all that came before it.
    """
    from scipy.stats import chi2

    statistic = sum(float(kind.sum()) ** 2 / kind.size for kind in products)
    return GoodnessOfFit(statistic, len(products), float(chi2.sf(statistic, len(products))))


def holm(p_values: Floats) -> list[float]:
    """Holm's step-down p-values: rejecting those below α keeps the chance of any false rejection at most α."""
    p = _finite(p_values, "p_values")
    adjusted, running = np.empty(len(p)), 0.0
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        running = max(running, min(1.0, (len(p) - rank) * float(p[index])))
        adjusted[index] = running
    return adjusted.tolist()


def _merge_rare(expected: npt.NDArray[np.float64], smallest: float) -> npt.NDArray[np.float64]:
    """`[C, K]` indicator of the cell each of C cells goes to, so that each of the K expects at least `smallest`."""
    order = np.argsort(-expected, kind="stable")
    target, cell, filled = np.zeros(len(expected), dtype=np.int64), 0, 0.0
    for index in order:
        if filled >= smallest:
            cell, filled = cell + 1, 0.0
        target[index], filled = cell, filled + float(expected[index])
    if filled < smallest and cell > 0:
        target[target == cell] = cell - 1
    return np.eye(int(target.max()) + 1)[target]


def _finite(samples: Floats, name: str) -> npt.NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} must be a non-empty list of numbers")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds a value that is not finite")
    return values


@lru_cache(maxsize=2)
def _cluster_weights(clusters: int, resamples: int, seed: int) -> npt.NDArray[np.float64]:
    """`[resamples, clusters]`: how often each resample holds each cluster. Kept: a report asks for the same again."""
    counts = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1.0 / clusters), size=resamples)
    return counts.astype(np.float64)


def _draws(count: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, count, size=(resamples, count))


def _interval(value: float, drawn: npt.NDArray[np.float64], confidence: float) -> Interval:
    tail = 50 * (1 - confidence)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(value, float(low), float(high))
