"""The fit: recovers planted costs through noise and outliers, and knows when it does not fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sglang_dspark.schedule.cost import CostModel, GraphSizes
from sglang_dspark.schedule.cost_fit import FitError, Point, Sample, fit_surface, group

GAMMA = 5
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def planted(requests: int, tokens: int, context: float) -> float:
    """Memory-bound up to 24 tokens, compute-bound after: a kink, and attention in both of its forms."""
    dense = 0.020 + 0.0004 * tokens + 0.0012 * max(0, tokens - 24)
    return dense + 0.0009 * requests + 2e-7 * context + 4e-8 * tokens * context / requests


def sweep(
    time_of: Callable[[int, int, float], float] = planted, noise: float = 0.03, outliers: float = 0.1, repeats: int = 8
) -> list[Sample]:
    rng = np.random.default_rng(1)
    samples = []
    for requests in (1, 2, 4, 8, 12, 16, 24, 32):
        for mean in (64, 512, 1024):
            for level in LEVELS:
                tokens = requests + round(level * requests * GAMMA)
                for _ in range(repeats):
                    context = requests * (mean + int(rng.integers(0, 10)))
                    seconds = time_of(requests, tokens, context) * float(rng.lognormal(0.0, noise))
                    if rng.random() < outliers:
                        seconds *= 5
                    samples.append(Sample(requests, tokens, context, True, seconds))
                    if level == 0:
                        plain = 0.018 + 0.0006 * requests + 2e-7 * context
                        samples.append(Sample(requests, requests, context, False, plain))
    return samples


def test_planted_costs_come_back_through_noise_and_outliers() -> None:
    fit = fit_surface(group(sweep(), drafted=True))
    assert fit.held_out_error is not None
    assert fit.held_out_error < 0.02
    model = CostModel(fit.surface)
    wrong = [
        model.round_seconds(requests, requests * mean, GAMMA)[tokens] / planted(requests, tokens, requests * mean) - 1
        for requests in (1, 3, 6, 20, 32)
        for mean in (64, 300, 1000)
        for tokens in range(requests, requests * (1 + GAMMA) + 1, 3)
    ]
    assert np.median(np.abs(wrong)) < 0.02
    assert np.max(np.abs(wrong)) < 0.12


def test_the_interval_holds_the_planted_time_and_narrows_with_repeats() -> None:
    few, many = (fit_surface(group(sweep(repeats=n, outliers=0.0), drafted=True)) for n in (4, 40))
    truth = np.array([planted(p.requests, p.tokens, p.context) for p in few.points])
    # Not 95 %: medians of four repeats are resampled, and a kink between two probes is no noise.
    assert np.mean((few.low <= truth) & (truth <= few.high)) > 0.6
    assert np.median((many.high - many.low) / many.fitted) < 0.6 * np.median((few.high - few.low) / few.fitted)


def test_rounds_without_a_draft_are_fitted_apart() -> None:
    points = group(sweep(), drafted=False)
    assert {p.tokens == p.requests for p in points} == {True}
    fit = fit_surface(points, resamples=0)
    model = CostModel(fit_surface(group(sweep(), drafted=True), resamples=0).surface, fit.surface)
    assert model.undrafted_seconds(8, 8 * 512) == pytest.approx(0.018 + 0.0048 + 2e-7 * 4096, rel=0.01)


def test_steps_at_captured_sizes_are_exact() -> None:
    graphs = GraphSizes(tokens=(6, 12, 24, 48, 96, 192))

    def stepped(requests: int, tokens: int, context: float) -> float:
        return 0.01 + 0.001 * next(size for size in graphs.tokens if size >= tokens) ** 0.8

    model = CostModel(fit_surface(group(sweep(stepped, 0.0, 0.0), True), graphs, resamples=0).surface, graphs=graphs)
    seconds = model.round_seconds(16, 16 * 100, GAMMA)
    for tokens in (17, 23, 24, 25, 48, 49, 96):
        assert seconds[tokens] == pytest.approx(stepped(16, tokens, 0), rel=1e-3)


def test_what_is_not_additive_shows_in_the_held_out_error() -> None:
    def product(requests: int, tokens: int, context: float) -> float:
        return 0.001 * requests**2 / tokens

    fit = fit_surface(group(sweep(product, 0.0, 0.0), True), resamples=0)
    assert fit.held_out_error is not None
    assert fit.held_out_error > 0.05


@pytest.mark.known_case(4)
def test_pieces_follow_the_range_of_the_probes() -> None:
    rng = np.random.default_rng(0)
    samples = [
        Sample(2, tokens, 128, True, (0.01 + 0.0005 * tokens) * float(rng.lognormal(0, 0.01)))
        for tokens in range(2, 49, 2)
        for _ in range(5)
    ]
    fit = fit_surface(group(samples, True), resamples=20)
    probes = fit.surface.tokens.probes
    assert (probes[0], probes[-1]) == (2, 48)
    assert len(probes) >= 8
    assert fit.held_out_error is not None
    assert fit.held_out_error < 0.02


def test_rare_kinds_are_dropped_and_one_kind_is_no_model() -> None:
    assert group([Sample(1, 2, 10, True, 0.1)] * 2, True) == []
    with pytest.raises(FitError, match="at least 2"):
        fit_surface([Point(1, 2, 10.0, (0.1, 0.1, 0.1))])
