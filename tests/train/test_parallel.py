"""A step in parts, and a step shared by two gloo processes, is the step."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sglang_dspark.evaluate.server import free_port
from sglang_dspark.model.draft import DraftShape
from sglang_dspark.train.data import Row, write_rows
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.loop import Trainer
from sglang_dspark.train.report import CURVE
from sglang_dspark.train.settings import TrainSettings
from sglang_dspark.train.state import read_state, weights_of
from sglang_dspark.train.target import Target

SETTINGS = TrainSettings(minutes=0, steps=20, rows_per_step=6, anchors=4, vocabulary_extra=0, warmup_steps=2)


@pytest.mark.parametrize("micro_rows", [1, 4])
def test_parts_add_up(shape: DraftShape, target: Target, rows: list[Row], tmp_path: Path, micro_rows: int) -> None:
    usable = [r for r in rows if len(r.r) > 1]
    runs = [
        Trainer(from_target(shape, target, 0), target, usable, [], settings, tmp_path)
        for settings in (SETTINGS, dataclasses.replace(SETTINGS, micro_rows=micro_rows))
    ]
    for _ in range(3):
        whole, parts = (run.train_step() for run in runs)
        assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        assert parts["alpha"] == pytest.approx(whole["alpha"], abs=2e-4)
    for name, weight in runs[0].weights().items():
        torch.testing.assert_close(runs[1].weights()[name], weight, rtol=1e-3, atol=1e-4)


def test_two_processes_train_as_one(tiny_folder: Path, rows: list[Row], tmp_path: Path) -> None:
    write_rows(tmp_path / "text.jsonl", rows)
    flags = [
        "run", "--target", str(tiny_folder), "--dtype", "float32", "--data", str(tmp_path / "text.jsonl"), "--minutes",
        "0", "--steps", "20", "--rows-per-step", "6", "--anchors", "4", "--vocabulary-extra", "0", "--block-size", "3",
        "--markov-rank", "4", "--warmup-steps", "2", "--validate-every", "10", "--validation-share", "0.2",
    ]  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("gloo_process.py")), *flags]
    port = str(free_port())
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "two")],
            env={**os.environ, **shared, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "answers to train on" in said[0]
    assert "answers to train on" not in said[1]
    alone = subprocess.run([*command, "--out", str(tmp_path / "one")], timeout=300, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    curves = [
        [json.loads(line) for line in (tmp_path / name / CURVE).read_text().splitlines()] for name in ("one", "two")
    ]
    assert [line["step"] for line in curves[1]] == [line["step"] for line in curves[0]]
    for one, two in zip(*curves, strict=True):
        if "loss" in one:
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
            assert two["hit"] == pytest.approx(one["hit"], abs=0.05)
    states = [weights_of(read_state(tmp_path / name)) for name in ("one", "two")]
    for name, weight in states[0].items():
        torch.testing.assert_close(states[1][name], weight, rtol=0.02, atol=5e-3)
