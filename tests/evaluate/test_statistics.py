from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from sglang_dspark.evaluate.statistics import (
    Interval,
    accept_length,
    bootstrap,
    cluster_bootstrap,
    conditional_chi_square,
    correlation_chi_square,
    holm,
    mean_accept_length,
    paired_ratio,
    percentile,
)


def test_values_are_exact() -> None:
    assert bootstrap([1.0, 2.0, 6.0]).value == 3.0
    assert bootstrap([1.0, 2.0, 6.0], "median").value == 2.0
    assert paired_ratio([2.0, 8.0], [1.0, 1.0]).value == pytest.approx(4.0)
    assert mean_accept_length(30, 12) == 2.5
    assert percentile([0.0, 1.0], 25) == 0.25


def test_intervals_are_seeded_and_hold_the_value() -> None:
    samples = np.random.default_rng(1).normal(5.0, 1.0, 40)
    one = bootstrap(samples, seed=3)
    assert one == bootstrap(samples, seed=3) != bootstrap(samples, seed=4)
    assert one.low < one.value < one.high
    assert one.value in one
    assert bootstrap([4.0, 4.0]) == Interval(4.0, 4.0, 4.0)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_intervals_cover_the_truth(statistic: str) -> None:
    random = np.random.default_rng(0)
    covered = sum(10.0 in bootstrap(random.normal(10.0, 2.0, 30), statistic, resamples=500, seed=i) for i in range(300))
    assert 0.88 <= covered / 300 <= 0.99


def test_pairing_removes_what_both_arms_share() -> None:
    random = np.random.default_rng(0)
    drift = random.uniform(1.0, 4.0, 8)
    ratio = paired_ratio(1.2 * drift, drift)
    assert ratio.value == pytest.approx(1.2)
    assert ratio.high - ratio.low < 1e-9
    swapped = paired_ratio(drift, 1.2 * drift)
    assert swapped.value == pytest.approx(1 / ratio.value)


def test_accept_length_weighs_requests_by_their_rounds() -> None:
    length = accept_length([30.0, 10.0], [10.0, 10.0])
    assert length.value == 2.0
    assert (length.low, length.high) == (1.0, 3.0)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match="non-empty"):
        bootstrap([])
    with pytest.raises(ValueError, match="not finite"):
        bootstrap([1.0, float("nan")])
    with pytest.raises(ValueError, match="pairs"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="no verification round"):
        mean_accept_length(5, 0)


def test_format() -> None:
    assert Interval(1.234, 1.1, 1.4).format() == "1.23 [1.10, 1.40]"
    assert str(Interval(1.234, 1.1, 1.4)) == "1.23 [1.1, 1.4]"


def test_with_one_distribution_it_is_pearsons_chi_square() -> None:
    p = np.array([0.5, 0.3, 0.2])
    cells = np.random.default_rng(2).choice(3, 400, p=p)
    found = conditional_chi_square(cells, np.tile(p, (400, 1)))
    expected = chisquare(np.bincount(cells, minlength=3), 400 * p)
    assert (found.dof, found.statistic) == (2, pytest.approx(expected.statistic))
    assert found.p == pytest.approx(expected.pvalue)


def test_groups_are_added() -> None:
    p = np.array([0.5, 0.3, 0.2])
    cells = np.random.default_rng(2).choice(3, 400, p=p)
    parts = [conditional_chi_square(part, np.tile(p, (200, 1))) for part in np.split(cells, 2)]
    both = conditional_chi_square(cells, np.tile(p, (400, 1)), np.repeat([0, 1], 200))
    assert both.statistic == pytest.approx(parts[0].statistic + parts[1].statistic)
    assert both.dof == 4


def test_p_values_are_uniform_where_distributions_depend_on_earlier_draws() -> None:
    rng = np.random.default_rng(3)
    table = rng.dirichlet(np.full(6, 0.4), 6)  # of the next cell, given the last
    p_values = []
    for _ in range(300):
        cells = np.zeros(601, dtype=np.int64)
        for i, u in enumerate(rng.random(600)):
            cells[i + 1] = min(int(np.searchsorted(table[cells[i]].cumsum(), u)), 5)
        p_values.append(conditional_chi_square(cells[1:], table[cells[:-1]], cells[:-1]).p)
    assert kstest(p_values, "uniform").pvalue > 0.001


def test_rare_cells_are_merged_and_certain_ones_are_not_tested() -> None:
    rare = np.tile([0.49, 0.49, 0.008, 0.006, 0.006], (1000, 1))
    cells = np.array([0, 1] * 490 + [2] * 20)
    assert conditional_chi_square(cells, rare).dof == 2
    with pytest.raises(ValueError, match="too few draws"):
        conditional_chi_square(np.zeros(50, dtype=np.int64), np.tile([1.0, 0.0], (50, 1)))
    with pytest.raises(ValueError, match="probabilities"):
        conditional_chi_square(cells, rare[:-1])


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_correlated_residuals_are_found() -> None:
    rng = np.random.default_rng(4)
    z = rng.normal(size=(20, 500))
    assert correlation_chi_square([z[1:] * z[:-1], z[2:] * z[:-2]]).dof == 2
    p_values = [correlation_chi_square([a[1:] * a[:-1]]).p for a in rng.normal(size=(300, 200))]
    assert kstest(p_values, "uniform").pvalue > 0.001
    assert correlation_chi_square([z * (0.1 * z + rng.normal(size=z.shape))]).p < 1e-6


def test_cluster_bootstrap_resamples_what_belongs_together() -> None:
    generator = np.random.default_rng(0)
    sums = np.stack([generator.normal(3.0, 1.0, size=400), np.ones(400)], axis=1)

    def ratio(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1]

    mean = cluster_bootstrap(sums, ratio)
    assert mean.value == pytest.approx(sums[:, 0].mean())
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * sums[:, 0].std() / 20, rel=0.15)
    # Four clusters that are alike inside are four draws, whatever they hold.
    pooled = cluster_bootstrap(np.array([[0.0, 100.0], [100.0, 100.0], [0.0, 100.0], [100.0, 100.0]]), ratio)
    assert (pooled.low, pooled.high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no cluster"):
        cluster_bootstrap(np.zeros((0, 2)), ratio)
