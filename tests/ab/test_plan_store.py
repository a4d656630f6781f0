from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ab_fakes import cells, run_at, scenarios

from sglang_dspark.ab.health import failure_kind, given_up, health
from sglang_dspark.ab.plan import FEWEST, LONGEST_SECONDS, MOST, SHORTEST_SECONDS, Plan, Speed, make_plan, order
from sglang_dspark.ab.store import Cell, Store, answers_of
from sglang_dspark.ab.traffic import Scenario, Shape
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.load import LoadRun, Result
from sglang_dspark.evaluate.summary import summarise

LOADS = scenarios((1, 4, 32))
SPEEDS = {
    "closed:1:T0": [Speed(10.0, 0.2), Speed(15.0, 0.2)],
    "closed:4:T0": [Speed(30.0, 0.5), Speed(40.0, 0.5)],
    "closed:32:T0": [Speed(100.0, 3.0), Speed(150.0, 2.0)],
}


def plan(seconds: float, **options: Any) -> Plan:
    given = {"repetitions": None, "dialogues": 96, **options}
    return make_plan(LOADS, SPEEDS, Shape(max_new_tokens=64), seconds=seconds, **given)


def test_a_plan_keeps_its_time() -> None:
    for seconds in (90.0, 300.0, 1200.0, 6000.0):
        made = plan(seconds)
        assert FEWEST <= made.repetitions <= MOST
        assert made.repetitions * made.seconds <= seconds


def test_more_time_means_longer_cells_and_then_more_repetitions() -> None:
    made = [plan(seconds) for seconds in (90.0, 200.0, 500.0, 1500.0, 1e6)]
    assert [one.cell_seconds for one in made] == sorted(one.cell_seconds for one in made)
    assert [one.repetitions for one in made] == sorted(one.repetitions for one in made)
    assert made[0].cell_seconds >= SHORTEST_SECONDS
    assert (made[-1].cell_seconds, made[-1].repetitions) == (LONGEST_SECONDS, MOST)
    assert made[0].requests == {}


def test_what_the_user_fixes_is_kept() -> None:
    assert plan(100.0, repetitions=7).repetitions == 7
    assert plan(600.0, cell_seconds=2.0).cell_seconds == 2.0


def test_starts_in_every_repetition_are_taken_off() -> None:
    free, costly = plan(1200.0), plan(1200.0, start_seconds=60.0)
    assert costly.repetitions * costly.seconds <= 1200.0
    assert costly.cell_seconds < free.cell_seconds


def test_lists_are_planned_by_their_rate() -> None:
    poisson, turns = Scenario("poisson", 2.0, 0.0), Scenario("multi-turn", 4, 0.0)
    speeds = {poisson.key: [Speed(50.0, 0.1)], turns.key: [Speed(60.0, 0.1)]}
    made = make_plan(
        [poisson, turns], speeds, Shape(max_new_tokens=10, turns=3), seconds=300.0, repetitions=5, dialogues=500
    )
    assert made.requests[poisson.key] == pytest.approx(2.0 * 150 / 5, rel=0.05)
    assert made.requests[turns.key] % 4 == 0
    assert made.requests[turns.key] == pytest.approx(150 / 5 * 60 / 10 / 3, rel=0.15)


def test_side_by_side_every_scenario_goes_through_all_arms_in_changing_order() -> None:
    seen = [list(order(["a", "b", "c"], LOADS, repetition, side_by_side=True)) for repetition in range(6)]
    for one in seen:
        for i in range(0, 9, 3):
            assert {arm for arm, _ in one[i : i + 3]} == {"a", "b", "c"}
            assert len({scenario.key for _, scenario in one[i : i + 3]}) == 1
    assert len({tuple(arm for arm, _ in one) for one in seen}) > 1
    apart = list(order(["a", "b"], LOADS, 0, side_by_side=False))
    assert len({arm for arm, _ in apart[:3]}) == 1


def test_complete_answers_are_asked_for_once() -> None:
    both = [*LOADS, Scenario("answers", 4, 0.0)]
    assert len(list(order(["a", "b"], both, 0, side_by_side=True))) == 8
    assert len(list(order(["a", "b"], both, 1, side_by_side=True))) == 6
    speeds = {**SPEEDS, "answers:4:T0": SPEEDS["closed:4:T0"]}
    made = make_plan(both, speeds, Shape(max_new_tokens=64), seconds=900.0, repetitions=None, dialogues=96)
    assert made.requests == {"answers:4:T0": 24}
    assert made.repetitions * made.seconds <= 900.0 - 24 * 64 / 30.0


def test_a_store_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "cells.jsonl"
    store = Store(path, {"arms": ["a"], "seed": 0})
    first, second, third = cells({"a": 20.0}, loads=(1, 2, 4), repetitions=1)
    store.add(first)
    store.note("plan", {"x": 1})
    store.add(second)
    again = Store(path, {"arms": ["a"], "seed": 0})
    assert again.done == {first.place, second.place}
    assert again.notes == {"plan": {"x": 1}}
    assert again.cells[0].results()[0].output_ids == first.answers[0]["ids"]
    with path.open("a") as file:
        file.write('{"arm": "a", "scen')  # killed while writing
    once_more = Store(path, {"arms": ["a"], "seed": 0})
    once_more.add(third)
    assert len(Store(path, {"arms": ["a"], "seed": 0}).cells) == 3


def test_cells_of_another_experiment_are_refused(tmp_path: Path) -> None:
    Store(tmp_path / "c", {"seed": 0})
    with pytest.raises(ConfigError, match="seed = 0, not 1"):
        Store(tmp_path / "c", {"seed": 1})
    (tmp_path / "d").write_text('{"format": "other"}\n')
    with pytest.raises(ConfigError, match="not the cells"):
        Store(tmp_path / "d", {})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("HTTP 500: no", "HTTP 500"),
        ("no complete answer within 5 s", "no answer in time"),
        ("ServerDisconnectedError: Server disconnected", "dropped connection"),
        ("the stream ended before the answer did", "dropped connection"),
        ("ClientConnectorError: Cannot connect to host", "refused"),
        ("aborted: out of memory", "aborted"),
        ("ValueError: ?", "other"),
    ],
)
def test_failures_have_kinds(error: str, kind: str) -> None:
    assert failure_kind(error) == kind


def sick(failed: int, of: int) -> Cell:
    run = run_at(20.0, of - failed)
    run = LoadRun([*run.results, *(Result(f"x{i}", "d", 0.0, error="HTTP 500: no") for i in range(failed))], 1.0)
    return Cell("a", "closed:4:T0", 0, 0.0, summarise(run).as_json(), answers_of(run))


def test_an_arm_is_given_up_after_cells_in_a_row_that_failed() -> None:
    assert given_up([sick(4, 4)]) is None
    assert given_up([sick(4, 4), sick(1, 4)]) is None
    assert given_up([sick(1, 4), sick(3, 4), sick(4, 4)]) == "7 of its last 8 requests failed (7 HTTP 500)"


def test_health_names_failures_and_a_slow_start() -> None:
    starts = {"a": [40.0], "b": [3.0], "c": [4.0]}
    state = health("a", [sick(1, 4)], starts, None)
    assert state["failures"] == {"HTTP 500": 1}
    assert state["warnings"] == ["1 of 4 requests failed: 1 HTTP 500", "slow start: 40 s, the others 4 s"]
    assert health("b", [], starts, None)["warnings"] == []
