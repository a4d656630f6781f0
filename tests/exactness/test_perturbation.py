"""At serving size: what a plan does not test cannot change the plan, in this round's confidences.

A confidence `c_k` reads the tokens before k. Redrawing every token behind a plan's last position ℓ changes `c_{ℓ+2}`
and later ones; redrawing every token from position k on changes `c_{k+1}` and later ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exact_prover import planted

from sglang_dspark.ops import schedule as compiled
from sglang_dspark.schedule import policies, prefix
from sglang_dspark.schedule.lookahead import causal_scan_ahead

REQUESTS, GAMMA = 64, 7
Plan = Callable[[np.ndarray, np.ndarray], np.ndarray]

_TOTAL = np.arange(REQUESTS * (1 + GAMMA) + 1)
# A round's seconds: a constant and a linear part, and small steps of 16 tokens as captured graph sizes make them.
SECONDS = 0.02 + 4e-5 * _TOTAL + 2e-4 * (-(-_TOTAL // 16))
PREDICTED = np.full((REQUESTS, GAMMA), 0.8)

CAUSAL: dict[str, Plan] = {
    "fixed": lambda c, limits: policies.fixed(4, limits),
    "threshold": lambda c, limits: policies.threshold(c, 0.3, limits),
    "causal scan": lambda c, limits: prefix.causal_scan(c, SECONDS, limits),
    "causal scan, compiled": lambda c, limits: compiled.causal_scan(c, SECONDS, limits),
    "look-ahead": lambda c, limits: causal_scan_ahead(c, PREDICTED, SECONDS, limits),
    "lagged top-K": lambda c, limits: prefix.lagged_topk(c, 160, limits),
    "lagged top-K, compiled": lambda c, limits: compiled.lagged_topk(c, 160, limits),
}


def draw(rng: np.random.Generator) -> np.ndarray:
    """`[R, gamma]` float32, with repeated values for ties and some NaN."""
    c = rng.beta(4.0, 1.2, (REQUESTS, GAMMA)).astype(np.float32)
    c[rng.random(c.shape) < 0.1] = 0.75
    c[rng.random(c.shape) < 0.03] = np.nan
    c[rng.random(c.shape) < 0.03] = 1.0
    return c


def limits_of(rng: np.random.Generator) -> np.ndarray:
    limits = np.full(REQUESTS, GAMMA)
    limits[rng.random(REQUESTS) < 0.1] = 0
    short = rng.random(REQUESTS) < 0.1
    limits[short] = rng.integers(0, GAMMA, short.sum())
    return limits


@pytest.mark.parametrize("name", CAUSAL)
def test_redrawing_everything_behind_the_plan_leaves_the_plan(name: str) -> None:
    """All requests at once: what every plan depends on is the tokens it admits, and the next confidence at most."""
    plan, rng, admitted = CAUSAL[name], np.random.default_rng(0), 0
    for _ in range(25):
        c, limits = draw(rng), limits_of(rng)
        lengths = plan(c, limits)
        # c_{ℓ+1} is known when ℓ is decided: it reads x_1..x_ℓ. Everything after it is not.
        redrawn = np.where(np.arange(GAMMA) > lengths[:, None], draw(rng), c)
        np.testing.assert_array_equal(plan(redrawn, limits), lengths)
        admitted += int(lengths.sum())
    assert admitted > 0


@pytest.mark.parametrize("name", CAUSAL)
def test_redrawing_behind_a_position_never_changes_whether_it_was_admitted(name: str) -> None:
    """One request and position at a time, whether it was admitted or not."""
    plan, rng = CAUSAL[name], np.random.default_rng(1)
    seen = set()
    for _ in range(25):
        c, limits = draw(rng), limits_of(rng)
        before = plan(c, limits)
        for _ in range(5):
            r, k = int(rng.integers(REQUESTS)), int(rng.integers(1, GAMMA + 1))
            changed = c.copy()
            changed[r, k:] = draw(rng)[r, k:]
            assert (plan(changed, limits)[r] >= k) == (before[r] >= k), (r, k)
            seen.add(bool(before[r] >= k))
    assert seen == {True, False}


@pytest.mark.parametrize(
    "plan",
    [
        lambda c, limits: planted.unconstrained_argmax(c, tuple(SECONDS), limits),
        lambda c, limits: planted.peeking_scan(c, tuple(SECONDS), limits, 16),
        lambda c, limits: planted.whole_row_fallback(c, 0.3, limits),
    ],
    ids=["unconstrained argmax", "peeking scan", "whole-row NaN fallback"],
)
def test_planted_errors_are_found_at_serving_size(plan: Callable[..., list[int]]) -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(5):
        c, limits = draw(rng), limits_of(rng)
        lengths = np.array(plan(c, limits))
        redrawn = np.where(np.arange(GAMMA) > lengths[:, None], draw(rng), c)
        changed += list(plan(redrawn, limits)) != list(lengths)
    assert changed > 0


def test_look_ahead_admits_what_the_plain_scan_admits() -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        c, limits = draw(rng), limits_of(rng)
        plain = prefix.causal_scan(c, SECONDS, limits)
        for predicted in (np.zeros_like(c), PREDICTED):
            assert np.all(causal_scan_ahead(c, predicted, SECONDS, limits) >= plain)


def test_look_ahead_crosses_a_step_that_stops_the_plain_scan() -> None:
    """One token more costs a whole step, four cost the same step."""
    seconds = (0.0, 1.0, 2.0, 2.01, 2.02, 2.03)
    c = [[0.95, 0.95, 0.95, 0.95]]
    assert prefix.causal_scan(c, seconds, [4]).tolist() == [0]
    assert causal_scan_ahead(c, c, seconds, [4]).tolist() == [4]
    assert causal_scan_ahead(c, c, seconds, [2]).tolist() == [2]
    with pytest.raises(ValueError, match="predicted"):
        causal_scan_ahead(c, [[0.5]], seconds, [4])
