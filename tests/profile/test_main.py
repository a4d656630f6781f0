"""The command, on a server that is not there: what it writes, prints and refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sglang_dspark import cli
from sglang_dspark.evaluate.load import LoadRun, Request
from sglang_dspark.identity import Identity
from sglang_dspark.profile import main as command
from sglang_dspark.profile.store import find_profile
from sglang_dspark.schedule.cost import CostModel
from sglang_dspark.schedule.profile import Profile

IDENTITY = Identity("t", "d", "cpu, 2 cores", "float32", 1, 1, 4, 1, "torch_native", "0.5.23", "0.1.0", 0)


# Three loads (8 is the server's limit) at two contexts, twice.
GRID = ["--requests", "1", "4", "--contexts", "64", "512"]


def seconds_of(requests: int, tokens: int, context: float, drafted: bool) -> float:
    return 0.01 + 0.001 * requests + (0.002 * requests + 0.0005 * tokens if drafted else 0.0) + 1e-7 * context


class FakeServer:
    """Stands for `ServerProcess` and for the endpoints that `profile` uses; its rounds cost `seconds_of`."""

    base_url = "http://nowhere"
    interrupt_at = 0

    def __init__(self, flags: list[str], name: str) -> None:
        self.flags, self.loads = flags, 0
        self._records = Path(flags[flags.index("--dspark-record") + 1])
        self._noise = np.random.default_rng(0)

    def __enter__(self) -> FakeServer:
        self._records.mkdir(parents=True)
        header = {"format": "dspark-rounds", "version": 1, "gamma": 4, "identity": IDENTITY.as_dict()}
        (self._records / "rounds-tp0-dp0-9-0.jsonl").write_text(json.dumps(header) + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_load(self, base_url: str, requests: list[Request], concurrency: int) -> LoadRun:
        self.loads += 1
        if self.loads == self.interrupt_at:
            raise KeyboardInterrupt
        assert {len(r.input_ids) for r in requests} == {len(requests[0].input_ids)}
        lines = []
        for i in range(28):
            drafted, tokens = i % 7 != 6, concurrency + (i % 7 % 6) * concurrency * 4 // 5
            tokens = tokens if drafted else concurrency
            context = concurrency * (len(requests[0].input_ids) + i)
            lines.append(
                {
                    "time": time.time(),
                    "seconds": seconds_of(concurrency, tokens, context, drafted) * self._noise.lognormal(0, 0.01),
                    "requests": concurrency,
                    "tokens": tokens,
                    "requested": tokens,
                    "context": context,
                    "drafted": drafted,
                    "mode": "sweep",
                }
            )
        with (self._records / "rounds-tp0-dp0-9-0.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return LoadRun([], 0.1)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FakeServer]:
    """The servers that were started, in order."""
    started: list[FakeServer] = []
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 50, "max_position_embeddings": 2048}')

    def start(flags: list[str], name: str) -> FakeServer:
        started.append(FakeServer(flags, name))
        return started[-1]

    info = {"model_path": str(model), "max_running_requests": 8, "device": "cpu"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "ServerProcess", start)
    monkeypatch.setattr(command, "server_info", lambda _: info)
    monkeypatch.setattr(command, "load", lambda _: SimpleNamespace(total_tokens=20_000))
    monkeypatch.setattr(command, "run_load", lambda *a: started[-1].run_load(*a))
    return started


def test_it_measures_writes_draws_and_installs(
    servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / "mine.json"
    assert cli.main(["profile", "--output", str(output), "--draft", "D", "--dtype", "float32", *GRID]) == 0
    assert servers[0].flags[:4] == ["--dtype", "float32", "--dspark-draft", "D"]
    assert "trusted" in capsys.readouterr().out
    profile = Profile.load(output)
    assert (profile.gamma, profile.identity, profile.trusted) == (4, IDENTITY, True)
    model = CostModel.from_profile(profile)
    assert model.round_seconds(6, 6 * 300, 4)[20] == pytest.approx(seconds_of(6, 20, 1800, True), rel=0.02)
    assert model.undrafted_seconds(6, 1800) == pytest.approx(seconds_of(6, 6, 1800, False), rel=0.02)
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    installed, reasons = find_profile(IDENTITY)
    assert installed is not None, reasons
    assert installed.read_text() == output.read_text()
    assert str(tmp_path) not in output.read_text()
    assert not output.with_suffix(".work").exists()


def test_an_interrupted_run_goes_on(
    servers: list[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", "--output", str(tmp_path / "p.json"), *GRID]
    monkeypatch.setattr(FakeServer, "interrupt_at", 5)
    assert cli.main(arguments) == 130
    assert "goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(FakeServer, "interrupt_at", 0)
    assert cli.main(arguments) == 0
    # One load of each run is for warming up, three of the first were measured.
    assert servers[1].loads == 1 + 12 - 3


def test_a_budget_ends_it_early(servers: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 15 s of it are for the end, so that hardly anything is measured.
    assert cli.main(["profile", "--budget-minutes", "0.255", *GRID]) in (0, 1)
    assert "loads within the budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dspark-policy", "fixed"], "--dspark-policy"),
        (["--dspark-record=x"], "--dspark-record"),
        (["--budget-minutes", "0"], "--budget-minutes"),
        (["--contexts", "0"], "--contexts"),
    ],
)
def test_what_it_refuses(
    servers: list[FakeServer], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["profile", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert servers == []


def test_it_prints_the_engine_s_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [10.0, 5.0], "max_batch_tokens": 8}
    (tmp_path / "t.json").write_text(json.dumps(table))
    assert cli.main(["profile", "--convert", str(tmp_path / "t.json"), "--table", "additive"]) == 0
    assert json.loads(capsys.readouterr().out)["m_probes"] == [1, 8]
