"""What is found between arms whose true difference is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ab_fakes import cells, chosen, results

from sglang_dspark.ab.compare import (
    ALL,
    THROUGHPUT,
    USER_SPEED,
    Table,
    acceptance,
    compare_all,
    ignores_temperature,
    outputs,
)
from sglang_dspark.ab.store import Cell

RUNS = 100
TRUE = 1.07


def test_the_same_arm_twice_is_not_told_apart() -> None:
    """At most one experiment in twenty may call two equal arms different, whatever the number of loads."""
    different = 0
    for seed in range(RUNS):
        table = Table(
            cells({"a": 20.0, "b": 20.0}, loads=(1, 4, 16, 32), temperatures=(0.0, 1.0), seed=seed, short=True)
        )
        different += any(row["call"] in ("higher", "lower") for row in compare_all(table, "b"))
    assert different <= RUNS / 20


@pytest.mark.parametrize("repetitions", [3, 6])
def test_a_known_difference_is_found_and_covered(repetitions: int) -> None:
    found = covered = 0
    for seed in range(RUNS):
        table = Table(cells({"a": 20.0, "b": 20.0 * TRUE}, repetitions=repetitions, noise=0.01, seed=seed, short=True))
        (row,) = (
            row for row in compare_all(table, "b") if row["scenario"].startswith(ALL) and row["metric"] == THROUGHPUT
        )
        found += row["ratio"]["low"] > 1
        covered += row["ratio"]["low"] <= TRUE <= row["ratio"]["high"]
    assert found >= 93
    assert covered >= 93


def test_every_load_is_covered() -> None:
    """Intervals of single loads too, which few repetitions make wide but not wrong."""
    covered = total = 0
    for seed in range(RUNS):
        rows = compare_all(Table(cells({"a": 20.0, "b": 20.0 * TRUE}, repetitions=3, seed=seed, short=True)), "b")
        total += len(rows)
        covered += sum(row["ratio"]["low"] <= TRUE <= row["ratio"]["high"] for row in rows)
    assert covered / total >= 0.93


def test_a_difference_inside_the_noise_is_called_that() -> None:
    rows = compare_all(Table(cells({"a": 20.0, "b": 20.02}, noise=0.05, seed=1)), "b")
    assert {row["call"] for row in rows} <= {"within noise", "uncertain"}
    assert any(row["call"] == "within noise" for row in rows)


def test_a_clear_difference_is_called_higher_and_the_candidate_is_the_numerator() -> None:
    table = Table(cells({"a": 20.0, "b": 30.0}, repetitions=6))
    assert {row["call"] for row in compare_all(table, "b")} == {"higher"}
    assert {row["call"] for row in compare_all(table, "a")} == {"lower"}
    assert {(row["arm"], row["baseline"]) for row in compare_all(table, "b")} == {("b", "a")}


def test_cells_with_failures_are_in_no_ratio() -> None:
    measured = cells({"a": 20.0, "b": 20.0})
    broken = [
        Cell(c.arm, c.scenario, c.repetition, c.started, {**c.figures, "failed": 1}, c.answers) if c.arm == "b" else c
        for c in measured
    ]
    assert compare_all(Table(broken), "b") == []


def test_throughput_is_per_device() -> None:
    measured = cells({"a": 20.0})
    one, four = Table(measured), Table(measured, devices=4)
    assert one.value("a", "closed:4:T0", 0, THROUGHPUT) == pytest.approx(
        4 * (four.value("a", "closed:4:T0", 0, THROUGHPUT) or 0)
    )


def test_outputs_are_compared_and_a_sampler_that_does_not_sample_is_noticed(tmp_path: Path) -> None:
    measured = cells({"a": 20.0, "b": 20.0, "c": 20.0}, temperatures=(0.0, 1.0), samples={"c": False})
    table = Table(measured)
    assert all(row["identical"] == row["compared"] > 0 and row["common"] == 1 for row in outputs(table, "a"))
    assert [arm for arm in table.arms if ignores_temperature(table, arm)] == ["c"]
    found = results(measured, tmp_path, [chosen(name) for name in "abc"], temperatures=(0.0, 1.0))
    void = [
        row for row in found["comparisons"] if "c" in (row["arm"], row["baseline"]) and row["scenario"].endswith("T1")
    ]
    assert void == []
    assert "c" not in found["frontier"]["1"]["curves"]
    assert "c" in found["frontier"]["0"]["curves"]
    assert any("does not sample" in warning for warning in found["verdict"]["warnings"])


def test_a_changed_answer_is_seen() -> None:
    measured = cells({"a": 20.0, "b": 20.0}, loads=(1,), repetitions=2)
    first = next(cell for cell in measured if cell.arm == "b")
    first.answers[0]["ids"][8] = -1  # type: ignore[index]
    (row,) = outputs(Table(measured), "a")
    assert (row["identical"], row["compared"]) == (1, 2)
    assert row["common"] == pytest.approx((1 + 8 / 32) / 2)


def answer(ids: list[int], finish: str = "length") -> dict[str, Any]:
    return {"id": "r0", "domain": "d", "ids": ids, "finish": finish, "error": None, "meta": {}}


@pytest.mark.parametrize(
    ("mine", "other", "same"),
    [
        (answer([1, 2, 3]), answer([1, 2, 3]), True),
        (answer([1, 2]), answer([1, 2, 3]), True),  # cut at a lower limit
        (answer([1, 2], "stop"), answer([1, 2, 3]), False),  # ended where the other went on
        (answer([1, 2, 4]), answer([1, 2, 3, 4]), False),
    ],
)
def test_answers_that_were_cut_are_compared_up_to_there(
    mine: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    figures = {"failed": 0, THROUGHPUT: 1.0, USER_SPEED: 1.0}
    table = Table([Cell(arm, "closed:1:T0", 0, 0.0, figures, [a]) for arm, a in (("a", other), ("b", mine))])
    (row,) = outputs(table, "a")
    assert row["identical"] == same


def test_answers_that_did_not_end_are_not_compared() -> None:
    figures = {"failed": 0, THROUGHPUT: 1.0, USER_SPEED: 1.0}
    answers = (("a", answer([1, 2])), ("b", answer([1], "")))
    assert outputs(Table([Cell(arm, "closed:1:T0", 0, 0.0, figures, [a]) for arm, a in answers]), "a") == []


def test_complete_answers_are_what_answers_and_acceptance_are_judged_by() -> None:
    measured = cells({"a": 20.0, "b": 20.0}, accept={"b": 2}, repetitions=2)
    (first, *_) = (cell for cell in measured if cell.arm == "b")
    asked = [Cell(arm, "answers:4:T0", 0, 0.0, first.figures, first.answers) for arm in ("a", "b")]
    table = Table([*measured, *asked])
    assert [row["scenario"] for row in outputs(table, "a")] == ["answers:4:T0"]
    assert acceptance(table)["b"]["0"]["mean"]["value"] == pytest.approx(2, abs=0.1)
    assert {row["scenario"].split(":")[0] for row in compare_all(table, "b")} == {"closed", ALL}
