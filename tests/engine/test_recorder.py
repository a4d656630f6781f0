"""Records hold every round, within the disk they may take, and survive a process that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sglang_dspark.engine.recorder import Recorder, line
from sglang_dspark.engine.rounds import Round


def finished(requests: int = 2, confidence: bool = True) -> Round:
    made = Round(
        requests=[SimpleNamespace(rid=f"r{i}") for i in range(requests)],
        context=40,
        mode="fixed3",
        drafts=True,
        temperatures=np.zeros(requests, dtype=np.float32),
        coupled=np.zeros(requests, dtype=np.bool_),
        explored=np.zeros(requests, dtype=np.bool_),
    )
    made.lengths = made.limits = np.full(requests, 3)
    made.confidence = np.full((requests, 4), 0.123456789, dtype=np.float32) if confidence else None
    made.came_out(torch.full((requests,), 2, dtype=torch.int32))
    return made


def test_a_line_says_what_was_asked_for_and_what_came_out() -> None:
    written = json.loads(json.dumps(line(finished(), rows=True), default=lambda a: a.tolist()))
    assert written["requests"] == 2
    assert written["tokens"] == 8
    assert written["seconds"] is None
    assert written["rows"]["accepted"] == [1, 1]
    assert written["rows"]["rid"] == ["r0", "r1"]
    assert written["rows"]["confidence"][0] == [0.123457] * 4
    assert line(finished(confidence=False), rows=True)["rows"]["confidence"] is None
    assert line(finished(), rows=False)["rows"] is None


def bytes_on_disk(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the recorder dropped it in this moment
        return 0


def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, limit_mib=0.1, header={"gamma": 4}, rank="tp0")
    size = 0
    for _ in range(600):
        recorder.put(finished())
        time.sleep(0.0005)
        size = max(size, sum(bytes_on_disk(p) for p in tmp_path.glob("*.jsonl")))
    deadline = time.monotonic() + 10
    while not recorder.idle and time.monotonic() < deadline:
        time.sleep(0.01)
    names = sorted(int(p.stem.rsplit("-", 1)[1]) for p in tmp_path.glob("*.jsonl"))
    assert names[0] > 0
    assert len(names) <= 9
    # Each file ends with the first write past its part.
    assert size < 0.15 * 2**20
    assert recorder.dropped == 0
    for path in tmp_path.glob("*.jsonl"):
        header, *rounds = [json.loads(text) for text in path.read_text().splitlines()]
        assert header["format"] == "dspark-rounds"
        assert header["gamma"] == 4
        assert all(r["tokens"] == 8 for r in rounds)


def test_a_killed_process_leaves_what_it_had_recorded(tmp_path: Path) -> None:
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_recorder import Recorder, finished
recorder = Recorder(Path({str(tmp_path)!r}), 1.0, {{}}, "tp0")
for _ in range(50):
    recorder.put(finished())
time.sleep(0.5)
print("ready", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    (path,) = tmp_path.glob("*.jsonl")
    assert len(path.read_text().splitlines()) == 51


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        Recorder(tmp_path / "taken", 1.0, {}, "tp0")
