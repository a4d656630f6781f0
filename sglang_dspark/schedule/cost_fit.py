"""Fit a `Surface` to measured rounds: non-negative least squares on monotone bases, relative errors, held-out check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_dspark.errors import DSparkError
from sglang_dspark.schedule.cost import Curve, GraphSizes, Surface
from sglang_dspark.schedule.survival import FloatArray, IntArray

# Repeats of a kind of round share a bin of mean context, each this much wider than the one before.
CONTEXT_RATIO = 1.3
# A kind of round seen less often is dropped: its median is not robust.
MIN_REPEATS = 3
# Pieces of alpha and of theta. More follow the noise of neighbouring probes.
MOST_PIECES = 12
FOLDS = 5
RESAMPLES = 200
# Weight of a change of slope, against relative errors: settles pieces that no point lies in, and little else.
_SMOOTH = 0.01
# Points further out than this many standard deviations pull with the force of one that lies there (Huber).
_HUBER = 2.0


class FitError(DSparkError, ValueError):
    """The measured rounds do not determine a model."""


@dataclass(frozen=True)
class Sample:
    """One measured round.

    Attributes:
        requests, tokens: R and the verified tokens, anchors counted.
        context: committed tokens of all requests before the round.
        drafted: False where the draft forward was skipped.
        seconds: of the whole round.
    """

    requests: int
    tokens: int
    context: int
    drafted: bool
    seconds: float


@dataclass(frozen=True)
class Point:
    """Repeats of one kind of round; `context` is their median."""

    requests: int
    tokens: int
    context: float
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Fit:
    """A surface with what it leaves unexplained.

    Attributes:
        surface: the model.
        points: `[P]`, what it was fitted to.
        fitted: `[P]` seconds, of the model at the points.
        low, high: `[P]` seconds, 95 % bootstrap interval of `fitted` over the repeats: of the noise, not of what the
            model cannot say.
        held_out_error: median relative error at points left out of the fit; None with too few points to leave any out.
    """

    surface: Surface
    points: tuple[Point, ...]
    fitted: FloatArray
    low: FloatArray
    high: FloatArray
    held_out_error: float | None


def group(samples: Iterable[Sample], drafted: bool, min_repeats: int = MIN_REPEATS) -> list[Point]:
    """Collect repeats of the same R, M and, within a bin, mean context; kinds seen too rarely are left out."""
    kinds: dict[tuple[int, int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.drafted == drafted:
            mean = sample.context / sample.requests
            level = round(np.log(max(mean, 1.0)) / np.log(CONTEXT_RATIO))
            kinds[sample.requests, sample.tokens, level].append(sample)
    return [
        Point(r, m, float(np.median([s.context for s in found])), tuple(s.seconds for s in found))
        for (r, m, _), found in sorted(kinds.items())
        if len(found) >= min_repeats
    ]


def fit_surface(
    points: Sequence[Point], graphs: GraphSizes | None = None, *, resamples: int = RESAMPLES, seed: int = 0
) -> Fit:
    """Fit, with intervals by resampling the repeats and the error at points that were left out.

    Args:
        points: of one kind of round (`group`).
        graphs: captured sizes; the tokens' curve then has a probe at each size that was reached.
        resamples: of the bootstrap.
        seed: of the bootstrap and of the folds.

    Raises:
        FitError: fewer than two different points.
    """
    if len(points) < 2:
        raise FitError(f"{len(points)} kinds of round were measured often enough; a cost model needs at least 2")
    design = _Design(points, graphs or GraphSizes())
    medians = np.array([p.median for p in points])
    weights = design.solve(medians)
    rng = np.random.default_rng(seed)
    drawn = np.empty((resamples, len(points)))
    for i, p in enumerate(points):
        repeats = np.asarray(p.seconds)
        drawn[:, i] = np.median(repeats[rng.integers(0, len(repeats), (resamples, len(repeats)))], axis=1)
    spread = np.array([design.columns @ design.solve(row) for row in drawn]) if resamples else medians[None]
    low, high = np.percentile(spread, [2.5, 97.5], axis=0)
    error = _held_out_error(design, points, medians, rng)
    return Fit(design.surface(weights), tuple(points), design.columns @ weights, low, high, error)


class _Design:
    """Columns `[P, 1 + alpha + theta + 2]`, each non-decreasing in R, M and mean context, so that any sum is."""

    def __init__(self, points: Sequence[Point], graphs: GraphSizes) -> None:
        count = np.array([(p.requests, p.tokens) for p in points], dtype=np.int64)
        context = np.array([p.context for p in points])
        requests = GraphSizes.padded(count[:, 0], graphs.requests)
        tokens = GraphSizes.padded(count[:, 1], graphs.tokens)
        self.requests = _probes(requests, exact_to=graphs.requests[-1] if graphs.requests else 0)
        self.tokens = _probes(tokens, exact_to=graphs.tokens[-1] if graphs.tokens else 0)
        # With the draft skipped M = R: alpha already says all that theta could.
        if (count[:, 0] == count[:, 1]).all():
            self.tokens = self.tokens[:1]
        self.columns = np.column_stack(
            [
                np.ones(len(points)),
                _ramps(requests, self.requests),
                _ramps(tokens, self.tokens),
                context,
                count[:, 1] * context / count[:, 0],
            ]
        )
        self.smooth = np.zeros((0, self.columns.shape[1]))
        for first, probes in ((1, self.requests), (len(self.requests), self.tokens)):
            self.smooth = np.vstack([self.smooth, _slope_changes(probes, first, self.columns.shape[1])])

    def solve(self, seconds: FloatArray, rows: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """Non-negative weights that minimise the relative error over `rows`, outliers held back."""
        from scipy.optimize import nnls

        columns = self.columns if rows is None else self.columns[rows]
        target = seconds if rows is None else seconds[rows]
        relative = columns / target[:, None]
        scale = np.maximum(relative.max(axis=0), 1e-30)
        smooth = _SMOOTH * self.smooth / float(np.median(target)) / scale
        pull = np.ones(len(target))
        weights = np.zeros(columns.shape[1])
        for _ in range(3):
            stacked = np.vstack([relative / scale * pull[:, None], smooth])
            weights = nnls(stacked, np.concatenate([pull, np.zeros(len(smooth))]))[0] / scale
            residual = np.abs(relative @ weights - 1.0)
            deviation = max(1.4826 * float(np.median(residual)), 1e-6)
            pull = np.sqrt(np.minimum(1.0, _HUBER * deviation / np.maximum(residual, 1e-12)))
        return weights

    def surface(self, weights: FloatArray) -> Surface:
        first, second = 1 + len(self.requests) - 1, 1 + len(self.requests) + len(self.tokens) - 2
        return Surface(
            bias_seconds=float(weights[0]),
            requests=_curve(self.requests, weights[1:first]),
            tokens=_curve(self.tokens, weights[first:second]),
            context_seconds=float(weights[-2]),
            token_context_seconds=float(weights[-1]),
        )


def _held_out_error(
    design: _Design, points: Sequence[Point], medians: FloatArray, rng: np.random.Generator
) -> float | None:
    """Every (R, M) is left out once, at all its contexts, and predicted from the rest."""
    kinds = sorted({(p.requests, p.tokens) for p in points})
    if len(kinds) < FOLDS:
        return None
    fold = dict(zip(kinds, rng.permutation(np.arange(len(kinds)) % FOLDS).tolist(), strict=True))
    mine = np.array([fold[p.requests, p.tokens] for p in points])
    errors = np.zeros(len(points))
    for i in range(FOLDS):
        left_out = mine == i
        predicted = design.columns[left_out] @ design.solve(medians, ~left_out)
        errors[left_out] = np.abs(predicted / medians[left_out] - 1.0)
    return float(np.median(errors))


def _probes(counts: IntArray, exact_to: int) -> list[int]:
    """Ends of the pieces: all counts up to `exact_to`, then about `MOST_PIECES` over the measured range, even in log.

    They follow what was measured, so a range of 2 to 48 has several pieces and none reaches past 48.
    """
    distinct = np.unique(counts)
    exact, rest = distinct[distinct <= exact_to], distinct[distinct > exact_to]
    if len(rest) > MOST_PIECES + 1:
        wanted = np.geomspace(rest[0], rest[-1], MOST_PIECES + 1)
        rest = np.unique(rest[np.abs(rest[None, :] - wanted[:, None]).argmin(axis=1)])
    return [*exact.tolist(), *rest.tolist()]


def _ramps(counts: IntArray, probes: Sequence[int]) -> FloatArray:
    """`[P, probes - 1]`: column i rises from 0 at probe i to 1 at probe i + 1; the last one goes on rising."""
    ends = np.asarray(probes, dtype=np.float64)
    share = (counts[:, None] - ends[:-1]) / np.diff(ends)
    top = np.ones(len(probes) - 1)
    top[-1:] = np.inf
    return np.clip(share, 0.0, top)


def _slope_changes(probes: Sequence[int], first: int, columns: int) -> FloatArray:
    """`[probes - 2, columns]`: times the probe's count, how much the slope changes at each inner probe."""
    changes = np.zeros((max(len(probes) - 2, 0), columns))
    for i in range(len(changes)):
        before, here, after = probes[i : i + 3]
        changes[i, first + i] = -here / (here - before)
        changes[i, first + i + 1] = here / (after - here)
    return changes


def _curve(probes: Sequence[int], rises: FloatArray) -> Curve:
    return Curve(tuple(probes), (0.0, *np.cumsum(rises).tolist()))
