from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.evaluate.comparison import draws, paired_comparison, student_interval


@pytest.mark.parametrize("pairs", [2, 3, 5, 10])
def test_few_pairs_are_covered_as_often_as_promised(pairs: int) -> None:
    random = np.random.default_rng(pairs)
    covered = false = 0
    for _ in range(400):
        drift = random.lognormal(0.0, 0.2, pairs)
        slow, fast = drift * random.lognormal(0.0, 0.03, pairs), 1.07 * drift * random.lognormal(0.0, 0.03, pairs)
        covered += 1.07 in paired_comparison(fast, slow, resamples=500).ratio
        false += paired_comparison(fast / 1.07, slow, resamples=500).p < 0.05
    assert 0.92 <= covered / 400 <= 0.985
    assert false / 400 <= 0.08


def test_the_interval_and_the_p_value_agree_and_arms_can_be_exchanged() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        a, b = random.lognormal(0.05, 0.05, 4), random.lognormal(0.0, 0.05, 4)
        one, other = paired_comparison(a, b), paired_comparison(b, a)
        assert (1.0 in one.ratio) == (one.p >= 0.05)
        assert one.ratio.value == pytest.approx(1 / other.ratio.value)
        assert one.ratio.low == pytest.approx(1 / other.ratio.high)


def test_equal_pairs_have_no_width() -> None:
    same = paired_comparison([2.0, 4.0], [1.0, 2.0])
    assert (same.ratio.low, same.ratio.high) == pytest.approx((2.0, 2.0))
    assert same.p == pytest.approx(0.0, abs=1e-9)
    assert paired_comparison([1.0, 2.0], [1.0, 2.0]).p == 1.0


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="two repetitions"):
        paired_comparison([1.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        student_interval(1.0, np.array([0.0, 1.0]), 3)
    assert draws(3, 5).shape == (5, 3)
