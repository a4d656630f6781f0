"""The whole command on simulated servers: real processes, real HTTP, known speeds and illnesses."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_dspark.ab.experiment import Experiment
from sglang_dspark.ab.main import main, parse_options, server_flags
from sglang_dspark.ab.store import Store
from sglang_dspark.errors import ConfigError

COMMAND = f"{sys.executable} -m sglang_dspark.ab.simulator"
SMALL = [
    "--temperature", "0", "--max-new-tokens", "16", "--minutes", "1", "--cell-seconds", "0.6", "--warm-seconds", "0.2",
    "--answers", "6",
]  # fmt: skip


def arms_file(folder: Path, arms: Mapping[str, str]) -> str:
    path = folder / "arms.yaml"
    entries = [{"name": name, "command": COMMAND, "flags": flags} for name, flags in arms.items()]
    path.write_text(yaml.safe_dump({"arms": entries}))
    return str(path)


def run(folder: Path, arms: Mapping[str, str], *flags: str, names: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    given = ["--arms-file", arms_file(folder, arms), "--output", str(folder / "out"), *SMALL, *flags]
    status = main([*(["--arms", *names] if names else []), *given])
    return status, json.loads((folder / "out" / "results.json").read_text())


def test_a_faster_server_is_found_and_everything_is_written(tmp_path: Path) -> None:
    arms = {"slow": "--round-ms 15", "fast": "--round-ms 15 --gamma 3 --accept 0.9"}
    status, found = run(tmp_path, arms, "--concurrency", "1", "4", "--repetitions", "3")
    assert status == 0
    assert found["question"] == {"candidate": "fast", "baseline": "slow", "slo": [], "devices": 1}
    assert all(row["ratio"]["value"] > 1.5 for row in found["comparisons"])
    assert (found["repetitions"], found["layout"]) == (3, "side-by-side")
    assert found["outputs"]
    assert all(row["identical"] == row["compared"] for row in found["outputs"])
    fast = next(cell for cell in found["cells"] if cell["arm"] == "fast" and cell["scenario"] == "closed:4:T0")
    assert fast["failed"] == 0
    assert fast["requests"] > 3 * 8
    assert 2.5 < fast["accept_length"] < 4
    assert fast["budget"] == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "bench_serving.jsonl").read_text().splitlines()]
    assert len(lines) == 12 + 2  # complete answers are asked for once an arm
    assert {line["tag"] for line in lines} == {"slow", "fast"}
    assert all(line["median_ttft_ms"] > 0 and line["output_throughput"] > 0 for line in lines)


def test_sick_arms_are_reported_and_do_not_stop_the_others(tmp_path: Path) -> None:
    arms = {
        "well": "--round-ms 3",
        "errors": "--round-ms 3 --errors 0.9",
        "drops": "--round-ms 3 --drops 0.3",
        "hangs": "--round-ms 3 --hangs 0.5",
        "dead": "--refuse-start",
        "late": "--round-ms 3 --slow-start 4",
    }
    flags = ("--concurrency", "2", "--repetitions", "3", "--request-seconds", "1", "--ready-seconds", "20")
    status, found = run(tmp_path, arms, *flags, "--candidate", "late", "--baseline", "well")
    assert status == 0
    state = {arm["name"]: arm for arm in found["arms"]}
    assert state["well"]["health"]["warnings"] == []
    assert state["errors"]["status"] == "given up"
    assert "HTTP 500" in state["errors"]["reason"]
    assert state["drops"]["health"]["failures"].get("dropped connection", 0) > 0
    assert state["hangs"]["health"]["failures"].get("no answer in time", 0) > 0
    assert state["dead"]["status"] == "not run"
    assert "simulated: this server does not start" in state["dead"]["reason"]
    assert state["late"]["health"]["start_seconds"] > 4
    assert {row["arm"] for row in found["comparisons"]} | {row["baseline"] for row in found["comparisons"]} >= {
        "well",
        "late",
    }


def test_an_interrupted_experiment_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = {"a": "--round-ms 2", "b": "--round-ms 2"}
    flags = ("--concurrency", "1", "--repetitions", "3")
    measure, count = Experiment._cell, 0

    def interrupted(self: Experiment, *args: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        measure(self, *args)

    monkeypatch.setattr(Experiment, "_cell", interrupted)
    run(tmp_path, arms, *flags)
    cells = tmp_path / "out" / "cells.jsonl"
    settings = json.loads(cells.read_text().splitlines()[0])["settings"]
    before = [cell.started for cell in Store(cells, settings).cells]
    assert len(before) == 3
    status, found = run(tmp_path, arms, *flags)
    after = Store(cells, settings).cells
    assert [cell.started for cell in after[:3]] == before
    assert len(after) == len({cell.place for cell in after}) == 8
    assert (status, found["repetitions"]) == (0, 3)
    more = ("--concurrency", "1", "--repetitions", "4")
    assert run(tmp_path, arms, *more)[1]["repetitions"] == 4
    assert [cell.started for cell in Store(cells, settings).cells[:8]] == [cell.started for cell in after]
    with pytest.raises(ConfigError, match="--fresh"):
        run(tmp_path, arms, *flags, "--seed", "1")


def test_other_traffic(tmp_path: Path) -> None:
    (tmp_path / "at.jsonl").write_text("0\n0.05\n0.1\n0.3\n")
    flags = (
        "--concurrency", "--poisson", "20", "--arrivals", str(tmp_path / "at.jsonl"), "--shared-prefix", "64",
        "--multi-turn", "2", "--traffic-users", "2", "--repetitions", "2", "--minutes", "0.2",
    )  # fmt: skip
    _, found = run(tmp_path, {"a": "--round-ms 2"}, *flags, names=("a", "aa:a"))
    kinds = {scenario["kind"] for scenario in found["scenarios"]}
    assert kinds == {"poisson", "recorded", "shared-prefix", "multi-turn", "answers"}
    by_kind = {cell["scenario"].split(":")[0]: cell for cell in found["cells"]}
    assert by_kind["recorded"]["requests"] == 2 * 4
    assert by_kind["multi-turn"]["requests"] % (2 * 2 * 2) == 0
    assert all(cell["failed"] == 0 for cell in found["cells"])
    assert any("A/A: a and a-again are the same arm" in s for s in found["verdict"]["sentences"])


def test_a_fresh_server_for_every_cell(tmp_path: Path) -> None:
    run(tmp_path, {"a": "--round-ms 1"}, "--concurrency", "1", "--repetitions", "2", "--fresh-server")
    lines = (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    starts = [json.loads(line)["value"]["a"] for line in lines if '"note": "starts"' in line]
    assert len(starts[-1]) == 4  # the first was only for planning


def test_servers_one_at_a_time(tmp_path: Path) -> None:
    arms = {"a": "--round-ms 2", "b": "--round-ms 3"}
    status, found = run(tmp_path, arms, "--concurrency", "1", "--repetitions", "2", "--layout", "one-at-a-time")
    assert (status, found["layout"], found["repetitions"]) == (0, "one-at-a-time", 2)
    assert all(arm["server"] for arm in found["arms"])


def test_reports_are_made_anew_without_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"a": "--round-ms 2", "b": "--round-ms 3"}, "--concurrency", "1", "2", "--repetitions", "2")
    for name in ("results.json", "report.md", "report.html"):
        (tmp_path / "out" / name).unlink()
    assert main(["report", str(tmp_path / "out"), "--candidate", "a", "--baseline", "b"]) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["question"]["candidate"] == "a"
    assert "written:" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="measure first"):
        main(["report", str(tmp_path / "nothing")])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--temperature", "-1"], "--temperature"),
        (["--multi-turn", "1"], "--multi-turn"),
        (["--draft", "eagle3"], "KIND=PATH"),
        (["--devices", "0"], "--devices"),
    ],
)
def test_flags_are_checked(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(flags)
    assert message in capsys.readouterr().err


def test_more_users_than_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="96 prompts for 100 users"):
        run(tmp_path, {"a": ""}, "--concurrency", "100")


def test_budgets_and_flags_of_every_server() -> None:
    quick, full = parse_options(["--quick"]), parse_options(["--dtype", "bfloat16"])
    assert (quick.minutes, quick.max_new_tokens) == (20, 32)
    assert (full.minutes, full.max_new_tokens) == (120, 64)
    assert server_flags(full, 32, None) == [  # type: ignore[arg-type]
        "--dtype", "bfloat16", "--max-running-requests", "32", "--context-length", "2048",
        "--max-total-tokens", "16384",
    ]  # fmt: skip
    large = parse_options(["--model-path", "/m", "--max-total-tokens", "100"])
    assert server_flags(large, 8, None) == [  # type: ignore[arg-type]
        "--model-path", "/m", "--max-total-tokens", "100", "--max-running-requests", "8",
    ]  # fmt: skip
