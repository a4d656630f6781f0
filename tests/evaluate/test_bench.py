"""The benchmark scripts, on fake servers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import bench_serving
import pytest
import timing
from evaluation_fakes import FakeEngine, FakeTokenizer
from serving_report import compare, markdown

from sglang_dspark.evaluate.arms import Arm
from sglang_dspark.evaluate.load import Result


def test_interleave_pairs_repetitions_and_varies_the_order() -> None:
    calls: list[str] = []
    functions = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    seconds = timing.interleave(functions, repetitions=20, warmup=1)
    assert {name: len(list_) for name, list_ in seconds.items()} == {"a": 20, "b": 20, "c": 20}
    assert calls[:3] == ["a", "b", "c"]
    rounds = [tuple(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 1


def test_interleave_measures() -> None:
    seconds = timing.interleave({"sleep": lambda: time.sleep(0.01), "none": lambda: None}, 3, warmup=0)
    slow, fast = timing.summary(seconds["sleep"]), timing.summary(seconds["none"])
    assert 0.01 <= slow.fastest <= slow.lower_quartile <= slow.median <= slow.upper_quartile <= slow.slowest
    assert fast.median < slow.median
    assert timing.Summary(1e-3, 9e-4, 2e-3, 0, 1).format() == "1000.0 [900.0, 2000.0] us"
    with pytest.raises(ValueError, match="no timed call"):
        timing.summary([])


def test_results_carry_what_reproduces_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(timing.__file__).with_name("bench_serving.py")
    monkeypatch.setattr(sys, "argv", [str(script), "--arm", "a=--x y"])
    path = timing.write_results("r", {"figure": 1}, tmp_path / "results")
    record = json.loads(path.read_text())
    assert record["command"] == "python python_bench/bench_serving.py --arm 'a=--x y'"
    assert record["figure"] == 1
    assert record["machine"]["cores"] >= 1
    assert "torch" in record["machine"]["versions"]
    assert str(tmp_path) not in path.read_text()


def answer(ids: list[int], drafted: int = 0) -> Result:
    meta: dict[str, Any] = {"completion_tokens": len(ids)}
    if drafted:
        meta |= {"spec_verify_ct": 1, "spec_num_proposed_drafts": drafted, "spec_num_correct_drafts": 1}
    return Result("p", "math", 0.0, ids, meta=meta)


def cell(arm: str, repetition: int, speed: float, drafted: int = 0, failed: int = 0) -> dict[str, Any]:
    return {
        "arm": arm,
        "concurrency": 1,
        "repetition": repetition,
        "failed": failed,
        "output_tokens_per_second": speed,
        "user_tokens_per_second": speed,
        "ttft_p50": 0.1,
        "inter_token_p50": 0.01,
        "accept_length": 2.0 if drafted else None,
        "verified_per_round": 5.0 if drafted else None,
        "speculation": {"drafted": drafted},
    }


ABOUT = {"plain": {"speculates": False}, "dspark": {"speculates": True}}


def comparison(drafted: int, failed: int = 0, ids: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    cells = [cell("plain", i, 10.0 * (i + 1)) for i in range(3)]
    cells += [cell("dspark", i, 15.0 * (i + 1), drafted, failed) for i in reversed(range(3))]
    outputs = {("plain", 1, i): [answer([1, 2, 3])] for i in range(3)}
    outputs |= {("dspark", 1, i): [answer(list(ids), drafted)] for i in range(3)}
    return compare(["plain", "dspark"], ABOUT, cells, outputs, same_answers=True)


def test_ratios_pair_repetitions() -> None:
    plain, dspark = comparison(drafted=4)["rows"]
    assert plain["throughput_ratio"] is None
    assert plain["identical"] is None
    ratio = dspark["throughput_ratio"]
    assert [ratio[name] for name in ("value", "low", "high")] == pytest.approx([1.5] * 3)
    assert dspark["identical"] == (3, 3)


def test_verdicts() -> None:
    assert comparison(drafted=4)["verdict"] == "measured"
    assert comparison(drafted=0)["verdict"] == "inconclusive"
    assert comparison(drafted=4, failed=1)["verdict"] == "failed requests"
    assert comparison(drafted=4, ids=(1, 2, 9))["rows"][1]["identical"] == (0, 3)


def test_table() -> None:
    settings = {"temperature": [0.0], "max_new_tokens": 8, "repetitions": 3, "layout": "side-by-side"}
    table = markdown({"settings": settings, **comparison(drafted=4)})
    assert "| 1 | dspark | 30.0 | 30.0 | 100 | 2.00 | 5.00 | 1.50 [1.50, 1.50] | 1.50 [1.50, 1.50] | 3 of 3 |" in table
    assert "Accept length of dspark: math 2.00" in table
    assert "Verdict: measured" in table


class FakeArmServers:
    """Two names for one fake engine."""

    engine: FakeEngine
    side_by_side = True

    def __init__(self, arms: list[Arm], flags: list[str], layout: str) -> None:
        self.flags = flags

    def __enter__(self) -> FakeArmServers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def get(self, name: str) -> FakeArmServers:
        return self

    @property
    def base_url(self) -> str:
        return self.engine.base_url

    def memory_bytes(self) -> int:
        return 1 << 30


@pytest.fixture
def bench(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    FakeArmServers.engine = engine
    monkeypatch.setattr(bench_serving, "ArmServers", FakeArmServers)
    monkeypatch.setattr(bench_serving, "served_tokenizer", lambda server: FakeTokenizer())

    def run(*flags: str) -> tuple[int, dict[str, Any]]:
        fixed = ("--results", str(tmp_path), "--max-new-tokens", "6")
        monkeypatch.setattr(sys, "argv", ["bench_serving.py", *fixed, *flags])
        status = bench_serving.main()
        path = tmp_path / "serving.json"
        return status, json.loads(path.read_text()) if path.exists() else {}

    return run


def test_a_whole_run(bench: Any, engine: FakeEngine, tmp_path: Path) -> None:
    status, record = bench("--concurrency", "1", "4", "--min-requests", "3")
    assert status == 0
    assert record["verdict"] == "measured"
    assert len(record["cells"]) == 2 * 2 * 3
    assert [row["identical"] for row in record["rows"] if row["arm"] == "dspark"] == [[9, 9], [24, 24]]
    order = [(c["arm"], c["concurrency"], c["repetition"]) for c in record["cells"]]
    assert order[:4] == [("plain", 1, 0), ("dspark", 1, 0), ("dspark", 1, 1), ("plain", 1, 1)]
    assert (tmp_path / "serving.md").read_text().startswith("| users | arm |")


@pytest.mark.known_case(23)
def test_a_run_without_drafts_is_inconclusive(bench: Any, engine: FakeEngine) -> None:
    engine.cap_length = 1.0
    status, record = bench("--concurrency", "2", "--min-requests", "2")
    assert status == bench_serving.EXIT_INCONCLUSIVE
    assert record["verdict"] == "inconclusive"


def test_failures_fail_the_run(bench: Any, engine: FakeEngine) -> None:
    engine.broken = {ord("<")}
    status, record = bench("--concurrency", "2", "--min-requests", "2", "--repetitions", "1")
    assert status == bench_serving.EXIT_FAILED
    assert record["verdict"] == "failed requests"


def test_accept_only(bench: Any) -> None:
    status, record = bench("--accept-only", "--limit", "6")
    assert status == 0
    assert [one["temperature"] for one in record["accept"]] == [0.0, 1.0]
    assert set(record["accept"][0]["by_domain"]) == {"math", "code", "chat", "mean"}


def test_bad_options_are_named(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--concurrency", "64")[0] == bench_serving.EXIT_FAILED
    assert "96 prompts, but 128 requests" in capsys.readouterr().err
    assert bench("--arm", "nonsense")[0] == bench_serving.EXIT_FAILED
    assert "--arm 'nonsense'" in capsys.readouterr().err
    for flags in (("--repetitions", "0"), ("--concurrency", "0"), ("--temperature", "0", "1")):
        with pytest.raises(SystemExit):
            bench(*flags)
        assert flags[0] in capsys.readouterr().err
