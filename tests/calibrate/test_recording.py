"""Recording against a stand-in for the server: its flags, the state on disk, and going on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calibration_draws import GAMMA

from sglang_dspark.calibrate import recording as module
from sglang_dspark.calibrate.recording import found, record
from sglang_dspark.calibrate.traffic import Phase
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.prompts import Prompt
from sglang_dspark.evaluate.rounds import RoundLog

PARTS = {"fit": [Prompt("m-1", "math", "one"), Prompt("c-1", "chat", "two")]}
PHASES = [Phase("fit", 0.0, False, 3), Phase("fit", 1.0, False, 3)]
ABOUT = {"prompts": "shipped", "report_prompts": None}


class Server:
    """Writes a round for every request it is told of; the second of two in a round ends early."""

    base_url = "http://nowhere"
    started: list[list[str]]

    def __init__(self, flags: list[str], **_: Any) -> None:
        self.started.append(flags)
        self.file = Path(flags[flags.index("--dspark-record") + 1]) / f"rounds-tp0-dp0-{len(self.started)}-0.jsonl"

    def __enter__(self) -> Server:
        header = {"format": "dspark-rounds", "version": 1, "gamma": GAMMA, "identity": {}}
        self.file.write_text(json.dumps(header) + "\n")
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, request: Any, limit: int) -> None:
        rows = {
            "rid": [request.rid],
            "temperature": [request.sampling["temperature"]],
            "coupled": [False],
            "length": [limit],
            "accepted": [1],
            "explored": [True],
            "limit": [limit],
            "confidence": [[0.5] * GAMMA],
        }
        record = {"time": 0.0, "seconds": None, "parts": None, "requests": 1, "tokens": 4, "requested": None}
        record |= {"context": 0, "drafted": True, "mode": "fixed3", "rows": rows}
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Request ids that were sent; the phase's `have` rounds are trusted, the rest is answered."""
    Server.started, ids, servers = [], [], []

    def start(flags: list[str], **options: Any) -> Server:
        servers.append(Server(flags, **options))
        return servers[-1]

    def drive(_url: str, requests: Any, phase: Phase, _users: int, show: Any, *, have: int, deadline: Any) -> int:
        for _ in range(phase.samples - have):
            request = next(requests)
            ids.append(request.rid)
            servers[-1].answer(request, GAMMA)
            servers[-1].answer(request, 1)  # no full label
            show(1)
            if len(ids) == 2 and len(servers) == 1:
                raise KeyboardInterrupt
        return phase.samples

    monkeypatch.setattr(module, "ServerProcess", start)
    monkeypatch.setattr(module, "server_info", lambda _: {"tokenizer_path": "t", "model_path": "/models/Demo"})
    monkeypatch.setattr(module, "load_tokenizer", lambda _: None)
    monkeypatch.setattr("sglang_dspark.calibrate.traffic.apply_chat", lambda _, text: [len(text)])
    monkeypatch.setattr(module, "drive", drive)
    return ids


def run(folder: Path, about: dict[str, Any] = ABOUT) -> module.Recording:
    return record(folder, ["--page-size", "16"], PARTS, PHASES, about, max_new_tokens=8, concurrency=2)


def test_a_stopped_recording_goes_on(tmp_path: Path, sent: list[str]) -> None:
    folder = tmp_path / "records"
    with pytest.raises(KeyboardInterrupt):
        run(folder)
    assert found(folder).issued == {"fit T=0": 2}
    done = run(folder)
    # The third greedy round, then three sampled ones; nobody is asked twice, no number is used twice.
    assert sent == ["cal-math-0", "cal-chat-1", "cal-math-2", "cal-math-3", "cal-chat-4", "cal-math-5"]
    assert done.issued == {"fit T=0": 3, "fit T=1": 3}
    assert done.name == "Demo"
    assert found(folder) == done
    samples = done.samples(RoundLog.open(folder))
    assert len(samples) == 12
    assert samples.has_label(GAMMA).sum() == 6
    assert sorted(samples.domains) == ["chat", "math"]


def test_the_server_verifies_everything_and_records(tmp_path: Path, sent: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "records")
    (flags,) = Server.started
    assert flags[:2] == ["--page-size", "16"]
    assert flags[flags.index("--dspark-policy") + 1] == "fixed"
    assert sent == ["cal-math-0", "cal-chat-1"]


def test_records_made_otherwise_are_not_continued(tmp_path: Path, sent: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "records")
    with pytest.raises(ConfigError, match="made otherwise"):
        run(tmp_path / "records", ABOUT | {"prompts": "other.jsonl"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="made otherwise"):
        run(tmp_path / "other")
    assert len(sent) == 2
