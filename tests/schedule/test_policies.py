"""Policies and survival: monotone, causal, safe with NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_dspark.schedule.policies import fixed, threshold
from sglang_dspark.schedule.survival import survival

confidences = st.lists(
    st.lists(st.one_of(st.floats(0, 1, width=32), st.just(float("nan")), st.floats(width=32)), min_size=4, max_size=4),
    min_size=0,
    max_size=5,
).map(lambda rows: np.array(rows, dtype=np.float32).reshape(-1, 4))


@given(confidences)
def test_survival_never_rises_and_stays_in_range(c: np.ndarray) -> None:
    a = survival(c)
    assert np.all((a >= 0) & (a <= 1))
    assert np.all(np.diff(a, axis=1) <= 0)


def test_a_bad_confidence_ends_survival_from_there_on() -> None:
    a = survival([[0.5, float("nan"), 0.9], [0.5, 1.5, 0.9], [0.5, 0.5, -0.1]])
    np.testing.assert_allclose(a, [[0.5, 0, 0], [0.5, 0, 0], [0.5, 0.25, 0]])


@given(confidences, st.floats(0, 1), st.integers(0, 3))
def test_threshold_is_causal(c: np.ndarray, minimum: float, k: int) -> None:
    """Redrawing everything after position k never changes whether k was admitted."""
    limits = np.full(len(c), 4)
    changed = c.copy()
    changed[:, k + 1 :] = np.random.default_rng(0).random((len(c), 3 - k))
    before, after = threshold(c, minimum, limits), threshold(changed, minimum, limits)
    np.testing.assert_array_equal(before >= k + 1, after >= k + 1)


def test_threshold_stops_at_the_first_crossing_and_within_limits() -> None:
    c = [[0.9, 0.9, 0.1, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    np.testing.assert_array_equal(threshold(c, 0.3, [4, 2, 4]), [2, 2, 0])
    np.testing.assert_array_equal(threshold(c, 0.0, [4, 4, 4]), [4, 4, 0])


def test_fixed_respects_limits_and_an_empty_batch() -> None:
    np.testing.assert_array_equal(fixed(3, [5, 2, 0, -4]), [3, 2, 0, 0])
    assert fixed(3, []).shape == (0,)
    assert threshold(np.zeros((0, 4)), 0.5, []).shape == (0,)


def test_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match="confidence"):
        survival([0.5, 0.5])
