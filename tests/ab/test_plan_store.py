from __future__ import annotations

from pathlib import Path

import pytest
from ab_fakes import cells, run_at, scenarios

from sglang_dspark.ab.health import failure_kind, given_up, health
from sglang_dspark.ab.plan import FEWEST, MOST, make_plan, order
from sglang_dspark.ab.store import Cell, Store, answers_of
from sglang_dspark.ab.traffic import Scenario, Shape
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.load import LoadRun, Result
from sglang_dspark.evaluate.summary import summarise

LOADS = scenarios((1, 4, 32))
RATES = {"closed:1:T0": [10.0, 15.0], "closed:4:T0": [30.0, 40.0], "closed:32:T0": [100.0, 150.0]}


def plan(seconds: float, **options: object) -> object:
    given = {"repetitions": None, "dialogues": 96, **options}
    return make_plan(LOADS, RATES, Shape(max_new_tokens=64), seconds=seconds, **given)  # type: ignore[arg-type]


def test_a_plan_keeps_its_time() -> None:
    for seconds in (600.0, 1200.0, 6000.0):
        made = plan(seconds)
        assert FEWEST <= made.repetitions <= MOST  # type: ignore[attr-defined]
        assert made.repetitions * made.seconds <= seconds  # type: ignore[attr-defined]


def test_more_time_means_more_requests_and_whole_rounds_of_users() -> None:
    short, long = plan(600.0), plan(3000.0)
    assert all(long.requests[key] >= short.requests[key] for key in RATES)  # type: ignore[attr-defined]
    assert long.requests["closed:32:T0"] % 32 == 0  # type: ignore[attr-defined]
    assert max(long.requests.values()) <= 96  # type: ignore[attr-defined]
    assert plan(1e6).requests["closed:32:T0"] == 96  # type: ignore[attr-defined]


def test_what_the_user_fixes_is_kept() -> None:
    made = plan(100.0, repetitions=7, requests_per_user=1)
    assert made.repetitions == 7  # type: ignore[attr-defined]
    assert made.requests == {"closed:1:T0": 3, "closed:4:T0": 4, "closed:32:T0": 32}  # type: ignore[attr-defined]


def test_open_loop_is_planned_by_its_rate() -> None:
    scenario = Scenario("poisson", 2.0, 0.0)
    made = make_plan(
        [scenario], {scenario.key: [50.0]}, Shape(max_new_tokens=10), seconds=300.0, repetitions=5, dialogues=500
    )
    assert made.requests[scenario.key] == pytest.approx(2.0 * 300 / 5, rel=0.05)


def test_side_by_side_every_scenario_goes_through_all_arms_in_changing_order() -> None:
    seen = [list(order(["a", "b", "c"], LOADS, repetition, side_by_side=True)) for repetition in range(6)]
    for one in seen:
        for i in range(0, 9, 3):
            assert {arm for arm, _ in one[i : i + 3]} == {"a", "b", "c"}
            assert len({scenario.key for _, scenario in one[i : i + 3]}) == 1
    assert len({tuple(arm for arm, _ in one) for one in seen}) > 1
    apart = list(order(["a", "b"], LOADS, 0, side_by_side=False))
    assert len({arm for arm, _ in apart[:3]}) == 1


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
