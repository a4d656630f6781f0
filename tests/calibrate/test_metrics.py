"""ECE, its noise floor, AUROC and intervals, against figures known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.calibrate.metrics import auroc, ece, figures, noise_floor, reliability


def perfect(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    p = generator.random(count)
    return p, (generator.random(count) < p).astype(float)


@pytest.mark.parametrize(("count", "expected"), [(5_000, 0.018), (40_000, 0.0063)])
def test_a_perfect_predictor_shows_its_noise_floor(count: int, expected: float) -> None:
    p, y = perfect(count)
    floor, floor_95 = noise_floor(p)
    assert floor == pytest.approx(expected, rel=0.06)  # algorithm, section 4
    assert floor < floor_95 < 2 * floor
    assert ece(p, y) < floor_95


def test_ece_of_a_constant_gap_is_the_gap() -> None:
    p, y = perfect(40_000)
    assert ece(0.8 * p, y) == pytest.approx(0.1, abs=0.01)  # the mean of 0.2 p, never outweighed within a bin
    # Half of it too high, half too low, the mean right.
    assert ece(0.3 + 0.4 * p, y) == pytest.approx(0.15, abs=0.01)


def test_ece_of_a_few_samples_uses_as_many_bins() -> None:
    assert ece(np.array([0.25, 0.75]), np.array([0.0, 1.0])) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="no sample"):
        ece(np.array([]), np.array([]))


def test_reliability_bins_have_equal_counts_and_the_means_of_their_samples() -> None:
    p, y = perfect(3_001)
    bins = reliability(p, y)
    assert sum(bins.count) == 3_001
    assert max(bins.count) - min(bins.count) <= 1
    assert np.average(bins.observed, weights=bins.count) == pytest.approx(y.mean())
    assert list(bins.predicted) == sorted(bins.predicted)


def test_auroc_counts_pairs_and_halves_ties() -> None:
    p, y = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1])
    assert auroc(p, y) == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert np.isnan(auroc(p, np.zeros(4)))


def test_figures_hold_the_truth_in_their_intervals() -> None:
    p, y = perfect(6_000)
    group = np.arange(6_000) // 50
    cell = figures(p, y, group, p, np.ones(6_000, dtype=bool))
    assert (cell.samples, cell.groups) == (6_000, 120)
    assert cell.ece.low <= cell.floor_95 <= cell.ece.high * 1.5
    assert 0.0 in cell.bias
    assert cell.brier == pytest.approx(1 / 6, abs=0.01)
    assert 5 / 6 in cell.auroc  # of a uniform p
    assert cell.confidence_error == pytest.approx(1 / 3, abs=0.01)  # 2 ∫ p (1 - p)
    shifted = figures(np.clip(p + 0.05, 0, 1), y, group, p, np.ones(6_000, dtype=bool))
    assert 0.0 not in shifted.bias


def test_intervals_widen_when_a_request_shares_its_fate() -> None:
    generator = np.random.default_rng(3)
    group = np.arange(2_000) // 25
    shift = np.repeat(generator.choice([-0.3, 0.3], size=80), 25)
    p = np.full(2_000, 0.5)
    y = (generator.random(2_000) < p + shift).astype(float)
    together = figures(p, y, group, p, np.ones(2_000, dtype=bool)).bias
    alone = figures(p, y, np.arange(2_000), p, np.ones(2_000, dtype=bool)).bias
    assert together.high - together.low > 2 * (alone.high - alone.low)
