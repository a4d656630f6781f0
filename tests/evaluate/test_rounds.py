"""Round records: whole files, half lines, several ranks, damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_dspark.evaluate.rounds import RecordError, RoundLog

HEADER = {"format": "dspark-rounds", "version": 1, "gamma": 2, "identity": None}
ROWS = {
    "rid": ["a", "b"],
    "temperature": [0, 1.0],
    "coupled": [False, True],
    "length": [2, 0],
    "accepted": [1, 0],
    "explored": [True, False],
    "limit": [2, 2],
    "confidence": [[0.9, 0.5], [0.1, 0.2]],
}


def line(time: float, **changes: Any) -> dict[str, Any]:
    return {
        "time": time,
        "seconds": 0.04,
        "parts": None,
        "requests": 2,
        "tokens": 4,
        "requested": None,
        "context": 100,
        "drafted": True,
        "mode": "adaptive",
        "rows": None,
    } | changes


def write(path: Path, *lines: dict[str, Any], tail: str = "") -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines) + tail)


def test_files_are_read_in_order_and_a_half_line_is_skipped(tmp_path: Path) -> None:
    write(tmp_path / "rounds-tp0-77-2.jsonl", HEADER, line(3), tail='{"time": 4')
    write(tmp_path / "rounds-tp0-77-10.jsonl", HEADER, line(5, seconds=None))
    write(tmp_path / "rounds-tp0-77-1.jsonl", HEADER, line(1), line(2, rows=ROWS))
    write(tmp_path / "rounds-tp1-dp0-78-1.jsonl", HEADER, line(9))
    (tmp_path / "rounds-tp0-77-11.jsonl").write_text('{"format"')
    log = RoundLog.open(tmp_path)
    rounds = list(log)
    assert [r.time for r in rounds] == [1, 2, 3, 5]
    assert (log.gamma, log.identity, rounds[3].seconds) == (2, None, None)
    rows = rounds[1].rows
    assert rows is not None
    assert rows.confidence is not None
    assert rows.confidence.dtype == np.float32
    assert rows.confidence.shape == (2, 2)
    assert rows.rid == ("a", "b")
    assert rows.accepted.tolist() == [1, 0]
    assert [r.time for r in RoundLog.open(tmp_path, rank=1)] == [9]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no round records of rank 0"):
        RoundLog.open(tmp_path)
    write(tmp_path / "rounds-tp0-1-1.jsonl", HEADER, {"time": 1})
    with pytest.raises(RecordError, match=r"rounds-tp0-1-1\.jsonl, line 2: KeyError"):
        list(RoundLog.open(tmp_path))
    write(tmp_path / "rounds-tp0-2-1.jsonl", HEADER | {"gamma": 3})
    with pytest.raises(RecordError, match="another server"):
        RoundLog.open(tmp_path)
    write(tmp_path / "rounds-tp0-2-1.jsonl", HEADER | {"version": 2})
    with pytest.raises(RecordError, match="version 1"):
        RoundLog.open(tmp_path)
