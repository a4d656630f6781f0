"""The command line end to end on a tiny target, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_dspark.train.data import Row, write_rows
from sglang_dspark.train.main import default_layer_ids, main


def test_run_resume_export_eval(
    tiny_folder: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, out = tmp_path / "text.jsonl.gz", tmp_path / "run", tmp_path / "draft"
    write_rows(data, rows)
    common = ["--target", str(tiny_folder), "--dtype", "float32"]
    shape = ["--block-size", "3", "--markov-rank", "4", "--target-layer-ids", "0", "2", "--validation-share", "0.2"]
    flags = ["--rows-per-step", "4", "--anchors", "4", "--minutes", "0", "--validate-every", "5", "--save-every", "4"]
    train = ["run", *common, "--data", str(data), "--out", str(run), "--export", str(out), *shape, *flags]
    assert main([*train, "--steps", "6"]) == 0
    assert (out / "model.safetensors").is_file()
    assert main([*train, "--steps", "8"]) == 0
    assert "resuming" in capsys.readouterr().err
    lines = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 8
    assert "validation" in lines[-1]
    assert main(["export", *common, "--run", str(run), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    for extra in ([], ["--loop"]):
        result = tmp_path / "result.json"
        flags = ["--draft", str(out), "--data", str(data), "--max-new-tokens", "8", "--json", str(result)]
        assert main(["eval", *common, *flags, *extra]) == 0
        assert json.loads(result.read_text())["mean"]["0"] >= 1.0


def test_errors_are_one_line(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "text.jsonl"
    run = ["run", "--target", str(tiny_folder), "--data", str(data), "--out", str(tmp_path / "run")]
    run += ["--markov-rank", "4"]
    assert main(run) == 2
    assert "error: --data" in capsys.readouterr().err
    write_rows(data, [Row("math", "a", 0.0, (5,), (6, 7, 8))])
    assert main([*run, "--target-layer-ids", "3"]) == 2
    assert "--target-layer-ids [3]" in capsys.readouterr().err
    assert main(["export", "--run", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert main(["eval", "--target", str(tmp_path), "--draft", str(tmp_path), "--data", str(data)]) == 2


def test_default_layers_stay_in_reach() -> None:
    assert default_layer_ids(30) == [7, 14, 21, 28]
    assert default_layer_ids(4) == [0, 1, 2]
