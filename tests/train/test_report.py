"""What a run keeps and shows: a curve without the lines a killed process left, TensorBoard events, the table."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from sglang_dspark.train.report import CURVE, EVENTS, RunLog, scalars, table

LINE: dict[str, Any] = {
    "step": 10, "minutes": 0.5, "loss": 1.25, "confidence_loss": 0.5, "tau": 1.75, "hit": [0.5, 0.25],
    "alpha": [0.6, 0.3], "rate": 0.1,
}  # fmt: skip
VALIDATION: dict[str, Any] = {"step": 10, "minutes": 0.5, "validation": {"math@0": 2.5}, "mean": {"0": 2.5}}


def test_the_curve_forgets_what_was_not_saved(tmp_path: Path) -> None:
    with RunLog(tmp_path, 0, show=False) as log:
        for step in (10, 20, 30):
            log.record(LINE | {"step": step})
    with (tmp_path / CURVE).open("a") as file:
        file.write('{"step": 40, "lo')  # killed while writing
    with RunLog(tmp_path, 20, show=False) as log:
        log.record(LINE | {"step": 30, "loss": 9.0})
    lines = [json.loads(line) for line in (tmp_path / CURVE).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 1.25), (20, 1.25), (30, 9.0)]


def test_tensorboard_events(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    with RunLog(tmp_path, 0, show=False) as log:
        log.record(LINE)
        log.record(VALIDATION)
    (file,) = (tmp_path / EVENTS).iterdir()
    content, found = file.read_bytes(), {}
    while content:  # length, its checksum, the record, its checksum
        size = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + size])
        found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
        content = content[16 + size :]
    assert found["loss"] == (10, 1.25)
    assert found["hit/2"] == (10, 0.25)
    assert found["validation/math_T0"] == (10, 2.5)


def test_scalars() -> None:
    assert scalars(VALIDATION) == {"minutes": 0.5, "validation/math_T0": 2.5, "mean/0": 2.5}


def test_the_table_shows_positions_and_validation() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(table(LINE, VALIDATION, 0.25))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "25.0% done" in shown
    assert "accept length 1.750" in shown
    assert "math@0 2.50" in shown
    (first,) = (line.split() for line in shown.splitlines() if "0.500" in line and "0.600" in line)
    assert first[1] == "1"
    console.print(table({}, {}, 0.0))  # before the first record
