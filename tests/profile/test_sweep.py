"""The sweep: what is planned, when a load was seen often enough, what is refused, and that it resumes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.rounds import Round
from sglang_dspark.identity import Identity
from sglang_dspark.profile.sweep import Cell, Sweep, SweepError, plan, usable

IDENTITY = Identity("t", "d", "cpu, 2 cores", "float32", 1, 1, 4, 1, "torch_native", "0.5.23", "0.1.0", 0)
GAMMA = 4


class FakeServer:
    """Writes the records a sweep would: every level and the skipped draft in turn, `rounds` of them a load."""

    def __init__(self, folder: Path, rounds: int = 21, identity: Identity | None = IDENTITY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "rounds-tp0-dp0-1-0.jsonl"
        header = {"format": "dspark-rounds", "version": 1, "gamma": GAMMA, "identity": identity and identity.as_dict()}
        self._path.write_text(json.dumps(header) + "\n")
        self.rounds, self.runs = rounds, 0
        self.change: Callable[[dict[str, Any]], None] = lambda line: None

    def __call__(self, cell: Cell) -> None:
        self.runs += 1
        with self._path.open("a") as file:
            for i in range(self.rounds):
                level = i % 7
                tokens = cell.requests * (1 + GAMMA * min(level, 5) // 5)
                line = {
                    "time": time.time(),
                    "seconds": 0.01 + 0.001 * tokens,
                    "parts": None,
                    "requests": cell.requests,
                    "tokens": cell.requests if level == 6 else tokens,
                    "requested": cell.requests if level == 6 else tokens,
                    "context": cell.requests * (cell.context + i),
                    "drafted": level != 6,
                    "mode": "sweep",
                    "rows": None,
                }
                self.change(line)
                file.write(json.dumps(line) + "\n")


def sweep(tmp_path: Path, server: FakeServer) -> Sweep:
    found = Sweep(tmp_path, tmp_path / "records", server, settle_seconds=0.3)
    server(Cell(1, 8, -1))
    found.bind()
    return found


def test_a_cell_is_measured_once(tmp_path: Path) -> None:
    server = FakeServer(tmp_path / "records")
    first = sweep(tmp_path, server)
    cell = Cell(4, 64, 0)
    samples = first.run(cell)
    assert {(s.requests, s.drafted) for s in samples} == {(4, True), (4, False)}
    assert (len(samples), server.runs) == (21, 2)
    again = Sweep(tmp_path, tmp_path / "records", server)
    assert again.done([cell, Cell(4, 64, 1)]) == [cell]
    assert again.run(cell) == samples
    assert server.runs == 2


def test_a_load_is_repeated_until_every_kind_was_seen(tmp_path: Path) -> None:
    server = FakeServer(tmp_path / "records", rounds=7)
    samples = sweep(tmp_path, server).run(Cell(2, 64, 0))
    assert (len(samples), server.runs) == (21, 4)


def test_untimed_and_foreign_rounds_are_left_out() -> None:
    one = Round(0.0, 0.1, None, 2, 4, 4, 100, True, "sweep", None)
    others = [dataclasses.replace(one, seconds=None), dataclasses.replace(one, mode="fixed2")]
    assert len(usable([one, *others])) == 1
    # Near a request's end a round is not what was asked for, and says so; its own time counts.
    assert len(usable([dataclasses.replace(one, requested=None)])) == 1


@pytest.mark.known_case(3)
@pytest.mark.parametrize("level", [0, 1, 3, 5])
def test_other_tokens_than_asked_for_fail_the_run(tmp_path: Path, level: int) -> None:
    server = FakeServer(tmp_path / "records")

    def clip(line: dict[str, Any]) -> None:
        if line["requested"] == 4 * (1 + GAMMA * level // 5):
            line["tokens"] += 1

    measuring = sweep(tmp_path, server)
    server.change = clip
    with pytest.raises(SweepError, match=r"4 requests was to verify \d+ tokens and verified \d+"):
        measuring.run(Cell(4, 64, 0))
    assert measuring.done([Cell(4, 64, 0)]) == []


def test_another_server_s_folder_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, FakeServer(tmp_path / "records"))
    with pytest.raises(ConfigError, match="dtype: float32 here, bfloat16 there"):
        sweep(tmp_path, FakeServer(tmp_path / "records", identity=dataclasses.replace(IDENTITY, dtype="bfloat16")))


def test_records_that_do_not_say_whose_they_are(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="do not say which server"):
        sweep(tmp_path, FakeServer(tmp_path / "records", identity=None))


def test_no_records(tmp_path: Path) -> None:
    server = FakeServer(tmp_path / "records")
    measuring = sweep(tmp_path, server)
    server.rounds = 0
    with pytest.raises(SweepError, match="no round was recorded"):
        measuring.run(Cell(4, 64, 0))


def test_the_plan_fits_the_server() -> None:
    cells = plan(20, 1000, 8000)
    assert {c.requests for c in cells} == {1, 2, 4, 8, 12, 16, 20}
    assert {c.requests for c in cells if c.context == 512} == {1, 2, 4, 8}
    assert all(c.context != 1024 for c in cells)
    assert len(cells) == len(set(cells))
    # The second pass comes after the whole first one, each load once in each.
    half = len(cells) // 2
    assert {c.visit for c in cells[:half]} == {0}
    first, second = ({(c.requests, c.context) for c in part} for part in (cells[:half], cells[half:]))
    assert first == second
    # A coarse grid first: smallest and largest load, at both ends of the context.
    assert {1, 20} <= {c.requests for c in cells[:5]}
    with pytest.raises(ConfigError, match="--contexts 64: none fits"):
        plan(4, 100, 1000, contexts=(64,))
