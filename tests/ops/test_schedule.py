"""The compiled prefix scheduler against the readable one, and both against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dspark.ops import schedule as compiled
from sglang_dspark.ops.extension import extension
from sglang_dspark.schedule import prefix

IMPLEMENTATIONS = pytest.mark.parametrize("scheduler", [prefix, compiled], ids=["numpy", "extension"])
ODD = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, -1e-9, 1.0, 1.0000001, 1.5, 1e-38, 1e-45, 0.5]


@st.composite
def rounds(draw: st.DrawFn):
    requests, gamma = draw(st.integers(0, 40)), draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    confidence = rng.random((requests, gamma)).astype(np.float32) ** draw(st.sampled_from([0.05, 1.0, 8.0]))
    if draw(st.booleans()):
        confidence = (confidence * 4).round().astype(np.float32) / 4  # ties
    for _ in range(draw(st.integers(0, 5)) if confidence.size else 0):
        confidence.flat[draw(st.integers(0, confidence.size - 1))] = draw(st.sampled_from(ODD))
    limits = rng.integers(-1, gamma + 2, requests)
    shape = draw(st.sampled_from(["flat", "linear", "steps", "noise"]))
    total = np.arange(requests * (1 + gamma) + 1, dtype=np.float64)
    seconds = {
        "flat": np.ones_like(total),
        "linear": 1 + total / (requests + 1),
        "steps": 1 + np.ceil(total / 8) * 0.3,
        "noise": 1 + rng.random(len(total)),
    }[shape]
    return confidence, seconds, limits


@settings(max_examples=300, deadline=None)
@given(round_=rounds(), budget=st.integers(0, 400))
def test_compiled_and_readable_agree(round_, budget: int) -> None:
    if extension() is None:
        pytest.skip("the extension is not built")
    confidence, _, limits = round_
    assert compiled.causal_scan(*round_).tolist() == prefix.causal_scan(*round_).tolist()
    assert compiled.best_budget(*round_) == prefix.best_budget(*round_)
    got, expected = (s.lagged_topk(confidence, budget, limits) for s in (compiled, prefix))
    assert got.tolist() == expected.tolist()


@IMPLEMENTATIONS
@settings(max_examples=100, deadline=None)
@given(round_=rounds())
def test_the_scan_is_a_prefix_of_the_sorted_candidates(scheduler, round_) -> None:
    """Nothing past a limit or a survival of 0; what is admitted beats what is not; one more would not improve Θ."""
    confidence, seconds, limits = round_
    lengths = scheduler.causal_scan(*round_)
    a = prefix.prefix_survival(confidence)
    requests, gamma = a.shape
    assert bool((lengths <= np.clip(limits, 0, gamma)).all())
    admitted = np.arange(gamma) < lengths[:, None]
    assert bool((a[admitted] > 0).all())
    left = (~admitted) & (np.arange(gamma) < limits[:, None])
    if admitted.any() and left.any():
        assert a[admitted].min() >= a[left].max()
    if left.any() and a[left].max() > 0:
        tokens, total = requests + a[admitted].sum(dtype=np.float64), requests + int(admitted.sum())
        before, after = tokens / seconds[total], (tokens + a[left].max()) / seconds[total + 1]
        assert after <= before * (1 + 1e-12)


@IMPLEMENTATIONS
@pytest.mark.known_case(1)
def test_known_case_1(scheduler) -> None:
    """R = 1, γ = 2, a_1 = .8, SPS 1, .5, .45: ℓ = 0 whichever token was drawn, so P(A) stays .70."""
    seconds = np.array([1.0, 1.0, 1 / 0.5, 1 / 0.45])
    for second in (0.9, 0.0):
        confidence = np.array([[0.8, second]], dtype=np.float32)
        assert scheduler.causal_scan(confidence, seconds, np.array([2])).tolist() == [0]
    # The lagged budget may cross the cliff: it was chosen before the draw, and is the same for both.
    lagged = scheduler.best_budget(np.array([[0.99, 0.99]], dtype=np.float32), seconds, np.array([2]))
    for second in (0.9, 0.0):
        confidence = np.array([[0.8, second]], dtype=np.float32)
        length = scheduler.lagged_topk(confidence, lagged, np.array([2]))
        assert length.tolist() == [lagged if second else min(lagged, 1)]


@IMPLEMENTATIONS
@pytest.mark.known_case(5)
def test_ties_go_to_the_earlier_position_then_the_lower_request(scheduler) -> None:
    confidence, limits = np.ones((4, 3), dtype=np.float32), np.full(4, 3)
    shares = [scheduler.lagged_topk(confidence, budget, limits).tolist() for budget in (1, 3, 5, 11, 12, 99)]
    assert shares == [[1, 0, 0, 0], [1, 1, 1, 0], [2, 1, 1, 1], [3, 3, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3]]


@pytest.mark.known_case(7)
@IMPLEMENTATIONS
def test_flat_cost_admits_all_with_any_chance_and_no_requests_are_legal(scheduler) -> None:
    confidence = np.array([[1.0, 0.5, 0.0, 1.0], [float("nan"), 1.0, 1.0, 1.0], [0.1, 2.0, 1.0, 1.0]], dtype=np.float32)
    assert scheduler.causal_scan(confidence, np.ones(16), np.full(3, 4)).tolist() == [2, 0, 1]
    assert scheduler.causal_scan(confidence, np.ones(16), np.array([1, 4, 0])).tolist() == [1, 0, 0]
    empty = np.zeros((0, 4), dtype=np.float32)
    assert scheduler.causal_scan(empty, np.ones(1), np.zeros(0, dtype=np.int64)).tolist() == []
    assert scheduler.best_budget(empty, np.ones(1), np.zeros(0, dtype=np.int64)) == 0
    assert scheduler.lagged_topk(empty, 3, np.zeros(0, dtype=np.int64)).tolist() == []


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("confidence", (np.zeros(3), np.ones(20), np.zeros(3))),
        ("confidence", (np.zeros((2, 256)), np.ones(600), np.zeros(2))),
        ("seconds", (np.zeros((2, 3)), np.ones(8), np.zeros(2))),
        ("seconds", (np.zeros((2, 3)), np.ones((9, 1)), np.zeros(2))),
        ("seconds", (np.zeros((2, 3)), np.zeros(9), np.zeros(2))),
        ("seconds", (np.zeros((2, 3)), np.full(9, np.nan), np.zeros(2))),
        ("seconds", (np.zeros((2, 3)), np.full(9, np.inf), np.zeros(2))),
        ("limits", (np.zeros((2, 3)), np.ones(9), np.zeros(3))),
        ("limits", (np.zeros((2, 3)), np.ones(9), np.zeros((2, 1)))),
    ],
)
def test_bad_arguments_are_named(scheduler, name: str, arguments) -> None:
    with pytest.raises(ValueError, match=name):
        scheduler.causal_scan(*arguments)
    with pytest.raises(ValueError, match=name):
        scheduler.best_budget(*arguments)


@IMPLEMENTATIONS
def test_a_negative_budget_is_refused(scheduler) -> None:
    with pytest.raises(ValueError, match="budget"):
        scheduler.lagged_topk(np.zeros((2, 3)), -1, np.zeros(2))
