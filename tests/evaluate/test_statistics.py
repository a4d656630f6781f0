from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.evaluate.statistics import (
    Interval,
    accept_length,
    bootstrap,
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
