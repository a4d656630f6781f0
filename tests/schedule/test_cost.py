"""The cost model: what it says at, between and beyond probes, that it never falls, and that it is quick."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.cost import CostModel, Curve, GraphSizes, Surface

SURFACE = Surface(
    bias_seconds=0.010,
    requests=Curve((1, 4, 16), (0.0, 0.003, 0.009)),
    tokens=Curve((1, 8, 64), (0.0, 0.002, 0.030)),
    context_seconds=1e-7,
    token_context_seconds=2e-8,
)


def test_the_formula_at_and_between_probes() -> None:
    seconds = CostModel(SURFACE).round_seconds(4, 4 * 500, 5)
    assert seconds.shape == (25,)
    attention = 1e-7 * 2000 + 2e-8 * 500 * np.array([8, 24])
    dense = np.array([0.002, 0.002 + 0.028 * 16 / 56])
    np.testing.assert_allclose(seconds[[8, 24]], 0.010 + 0.003 + dense + attention, rtol=1e-12)
    assert np.isfinite(seconds).all()


def test_beyond_the_last_probe_the_last_slope_goes_on() -> None:
    seconds = CostModel(SURFACE).round_seconds(32, 0, 7)
    np.testing.assert_allclose(np.diff(seconds[64:]), 0.028 / 56, rtol=1e-9)
    assert CostModel(SURFACE).round_seconds(28, 0, 0)[28] == pytest.approx(
        0.010 + 0.009 + 12 * 0.006 / 12 + 0.002 + 0.028 * 20 / 56
    )


def test_a_flat_last_piece_does_not_make_the_rest_free() -> None:
    curve = Curve((1, 8, 64), (0.0, 0.007, 0.007))
    assert curve.at(np.array([64 + 63]))[0] == pytest.approx(0.014)


def test_it_rises_in_every_argument() -> None:
    model = CostModel(SURFACE, Surface(0.009, Curve((1, 16), (0.0, 0.006)), Curve((1,), (0.0,)), 1e-7))
    previous = None
    for requests in range(1, 40):
        by_context = np.array([model.round_seconds(requests, requests * mean, 4) for mean in (0, 10, 1000, 9000)])
        assert (np.diff(by_context, axis=0) >= 0).all()
        assert (np.diff(by_context[:, requests:], axis=1) >= 0).all()
        if previous is not None:
            shared = previous.shape[1]
            assert (by_context[:, requests:shared] >= previous[:, requests:]).all()
        previous = by_context
        assert model.undrafted_seconds(requests, requests * 10) <= model.undrafted_seconds(
            requests + 1, 10 + 10 * requests
        )


def test_captured_sizes_are_rounded_up() -> None:
    graphs = GraphSizes(requests=(1, 4, 8), tokens=(8, 16))
    seconds = CostModel(SURFACE, graphs=graphs).round_seconds(3, 0, 5)
    padded_requests = 0.003
    np.testing.assert_allclose(seconds[3:9], 0.010 + padded_requests + 0.002)
    np.testing.assert_allclose(seconds[9:17], 0.010 + padded_requests + 0.002 + 0.028 * 8 / 56)
    # Past the last captured size rounds run as they are.
    assert seconds[18] == pytest.approx(0.010 + padded_requests + 0.002 + 0.028 * 10 / 56)


def test_a_round_without_the_draft_falls_back_to_the_dearer_one() -> None:
    model = CostModel(SURFACE)
    assert model.undrafted_seconds(4, 400) == model.round_seconds(4, 400, 0)[4]


def test_no_requests_and_tables_that_have_to_grow() -> None:
    model = CostModel(SURFACE)
    assert model.round_seconds(0, 0, 5).shape == (1,)
    assert model.round_seconds(2000, 2000, 7).shape == (16001,)
    assert np.isfinite(model.undrafted_seconds(40_000, 0))


def test_planning_time() -> None:
    model = CostModel(SURFACE)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for context in range(20):
            model.round_seconds(32, 32 * context, 5)
        best = min(best, (time.perf_counter() - start) / 20)
    assert best < 20e-6


@pytest.mark.parametrize(
    ("probes", "seconds"),
    [
        ((), ()),
        ((1, 2), (0.0,)),
        ((2, 2), (0.0, 1.0)),
        ((1, 2), (1.0, 0.5)),
        ((1, 2), (0.0, float("nan"))),
        ((1, 2), (-1.0, 0.5)),
    ],
)
def test_what_is_no_cost_curve(probes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Curve(probes, seconds)


def test_what_is_no_surface() -> None:
    with pytest.raises(ConfigError, match="context_seconds"):
        Surface(0.0, Curve((1,), (0.0,)), Curve((1,), (0.0,)), context_seconds=-1.0)
