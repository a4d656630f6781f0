from __future__ import annotations

import pytest
from ab_fakes import cells

from sglang_dspark.ab.compare import Table
from sglang_dspark.ab.frontier import (
    OUT_OF_REACH,
    Curves,
    best_at_least,
    frontier,
    pareto,
    slo_points,
    throughput_at,
    user_speed_at,
)

CURVE = [(10.0, 10.0), (8.0, 32.0), (4.0, 64.0), (2.0, 60.0)]
LOADS = [("closed:1:T0", 1.0), ("closed:4:T0", 4.0), ("closed:16:T0", 16.0)]


def test_points_are_met_exactly_and_the_way_between_them_is_straight_on_logarithmic_axes() -> None:
    for speed, throughput in CURVE[:3]:
        assert throughput_at(CURVE, speed) == pytest.approx(throughput)
        assert user_speed_at(CURVE, throughput) == pytest.approx(speed)
    half = throughput_at([(8.0, 32.0), (2.0, 128.0)], 4.0)
    assert half == pytest.approx(64.0)


def test_the_best_of_a_curve_that_turns_back_counts() -> None:
    assert throughput_at(CURVE, 2.0) == 64.0  # more load only made it worse
    assert throughput_at(CURVE, 1.0) == 64.0
    assert throughput_at([(5.0, 5.0), (6.0, 50.0), (3.0, 60.0)], 5.0) > 50.0  # faster under load than alone


def test_beyond_its_end_an_arm_never_gets_there() -> None:
    assert throughput_at(CURVE, 10.1) is None
    assert user_speed_at(CURVE, 64.1) is None
    assert best_at_least([], 1.0) is None


def test_pareto() -> None:
    assert pareto(CURVE) == [True, True, True, False]


def test_ratios_along_the_frontier_with_intervals() -> None:
    table = Table(cells({"a": 20.0, "b": 30.0}, noise=0.01, repetitions=5))
    curves = Curves(table, LOADS, ["a", "b"])
    points = slo_points(curves, "b", "a", 0)
    assert len(points) == 3
    for at in points:
        row = curves.compare("b", "a", at, "throughput")
        assert row["status"] == "measured"
        assert row["ratio"]["low"] < row["ratio"]["value"] < row["ratio"]["high"]
    same = curves.compare("a", "a", points[1], "throughput")["ratio"]
    assert same["value"] == same["low"] == same["high"] == 1.0


def test_the_ratio_at_equal_user_speed_covers_the_truth() -> None:
    truth_table = Table(cells({"a": 20.0, "b": 21.4}, noise=0.0, drift=0.0, repetitions=2))
    at = 14.0
    truth = Curves(truth_table, LOADS, ["a", "b"]).compare("b", "a", at, "throughput")["ratio"]["value"]
    covered = 0
    for seed in range(40):
        table = Table(cells({"a": 20.0, "b": 21.4}, noise=0.01, drift=0.0, seed=seed, short=True))
        ratio = Curves(table, LOADS, ["a", "b"]).compare("b", "a", at, "throughput")["ratio"]
        covered += ratio["low"] <= truth <= ratio["high"]
    assert covered >= 36


def test_out_of_reach_is_said_of_the_arm_that_is() -> None:
    table = Table(cells({"a": 20.0, "b": 40.0}, noise=0.01))
    curves = Curves(table, LOADS, ["a", "b"])
    row = curves.compare("b", "a", 30.0, "throughput")
    assert (row["status"], row["who"], row["ratio"]) == (OUT_OF_REACH, ["a"], None)
    both = curves.compare("b", "a", 1000.0, "throughput")
    assert both["who"] == ["b", "a"]
    below = curves.compare("b", "a", 12.0, "throughput")
    assert below["at_least"]  # b is never as slow as that


def test_at_the_very_end_of_an_arm_there_is_no_interval() -> None:
    table = Table(cells({"a": 20.0, "b": 20.0}, noise=0.05))
    curves = Curves(table, LOADS, ["a", "b"])
    end = curves.curve("a")[0][0]
    row = curves.compare("b", "a", end * 0.9999, "throughput")
    assert row["status"] in ("edge of reach", OUT_OF_REACH)


def test_the_slower_arm_is_not_on_or_above_the_faster() -> None:
    table = Table(cells({"a": 20.0, "b": 30.0}, noise=0.01))
    up = frontier(table, LOADS, ["a", "b"], "b")
    down = frontier(table, LOADS, ["a", "b"], "a")
    assert up is not None
    assert down is not None
    assert up["on_or_above"]["a"]["holds"]
    assert not down["on_or_above"]["b"]["holds"]
    assert len(down["on_or_above"]["b"]["below"]) == 3


def test_equal_arms_are_on_each_other_within_noise() -> None:
    table = Table(cells({"a": 20.0, "b": 20.0}, noise=0.01, seed=3))
    found = frontier(table, LOADS, ["a", "b"], "b")
    assert found is not None
    assert found["on_or_above"]["a"]["holds"]


def test_a_repetition_that_lacks_a_cell_is_left_out() -> None:
    measured = cells({"a": 20.0, "b": 30.0}, repetitions=3)
    table = Table(measured[:-1])
    assert len(Curves(table, LOADS, ["a", "b"]).repetitions) == 2
