"""The adaptive policy on the real engine: same text, modes that change, and what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_dspark.evaluate.endpoints import dspark_state
from sglang_dspark.evaluate.equality import EqualityReport
from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.rounds import RoundLog
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.identity import Identity
from sglang_dspark.schedule.cost import Curve, Surface
from sglang_dspark.schedule.profile import Profile

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table by which drafting pays for few requests and not for many, whatever this machine is like."""
    drafted = Surface(0.05, Curve((1, 16), (0.01, 0.16)), Curve((1, 4, 96), (0.0, 0.001, 0.4)))
    undrafted = Surface(0.05, Curve((1, 16), (0.0, 0.07)), Curve((0,), (0.0,)))
    path = tmp_path_factory.mktemp("profile") / "table.json"
    Profile(5, "synthetic", drafted, undrafted).save(path)
    return path


@pytest.fixture(scope="module")
def scheduled(serve: Any, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    record = tmp_path_factory.mktemp("record")
    flags = ("--dspark-profile", str(table), "--dspark-explore", "0.1", "--dspark-record", str(record))
    with serve(*flags, "--dspark-accept-failed-calibration", "on", name="scheduled") as server:
        server.record = record
        yield server


def state_of(server: ServerProcess) -> dict[str, Any]:
    (state,) = dspark_state(server.base_url).values()
    return state


@pytest.mark.parametrize("batch", [2, 12])
def test_the_text_is_plain_serving_s(
    scheduled: ServerProcess, requests: list[Request], reference: list[Result], batch: int
) -> None:
    report = EqualityReport()
    report.add(f"batch {batch}", reference, run_load(scheduled.base_url, requests, batch).results)
    assert report.verdict == "equal", report.as_json()


def test_it_says_what_it_did(scheduled: ServerProcess, requests: list[Request]) -> None:
    run_load(scheduled.base_url, requests, 12)
    state = state_of(scheduled)
    assert state["policy"] == "causal"
    assert state["profile"].endswith("table.json")
    assert sum(state["rounds"].values()) > 50
    assert len(state["rounds"]) > 1, "the guard never changed its mode"
    assert sum(count > 0 for count in state["verify_lengths"]) > 2
    assert all(a <= v for a, v in zip(state["accepted_by_position"], state["verified_by_position"], strict=True))
    metrics = httpx.get(f"{scheduled.base_url}/metrics", timeout=30).text
    for name in (
        "rounds_total",
        "budget",
        "theta_predicted",
        "theta_real",
        "guard_probes_total",
        "fuse",
        "profile_info",
    ):
        assert f"dspark_{name}{{" in metrics, name


def test_planning_costs_little(scheduled: ServerProcess, requests: list[Request]) -> None:
    before = state_of(scheduled)["part_seconds"]
    run_load(scheduled.base_url, requests, 12)
    spent = {part: seconds - before[part] for part, seconds in state_of(scheduled)["part_seconds"].items()}
    assert spent["plan"] < 0.02 * sum(spent.values()), spent


def test_records_hold_what_ran(scheduled: ServerProcess) -> None:
    deadline = time.monotonic() + 5
    rounds = list(RoundLog.open(scheduled.record))
    while len(rounds) < 50 and time.monotonic() < deadline:
        rounds = list(RoundLog.open(scheduled.record))
    assert len(rounds) >= 50
    for ran in rounds:
        assert ran.rows is not None
        assert ran.tokens == ran.requests + ran.rows.length.sum()
        assert ran.drafted or not ran.rows.length.any()


def test_a_table_of_another_machine_is_named_and_not_used(serve: Any, table: Path, tmp_path: Path) -> None:
    foreign = Identity.of(
        tmp_path, tmp_path, dtype="float32", gamma=5, page_size=1, attention_backend="torch_native", device="another"
    )
    profile = Profile.load(table)
    path = tmp_path / "foreign.json"
    Profile(5, "synthetic", profile.drafted, profile.undrafted, identity=foreign).save(path)
    with serve("--dspark-profile", str(path), name="foreign") as server:
        text = server.log_path.read_text()
        assert "foreign.json: " in text
        assert "another there" in text
        assert "nothing is scheduled" in text
