"""The replay: its accounts add up, its requests are what they are said to be, and its tables have their shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import replay_tables as tables
from replay_arms import Fixed, Guarded, arms, simulate
from replay_traffic import DEMO, Chains, generate, recorded

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.rounds import RoundLog

CHAINS = generate(DEMO, gamma=5, each=40, rounds=60)
FREE = tables.synthetic(tables.flat, draft=0.0)


def test_generated_confidences_are_calibrated_and_sharp() -> None:
    predicted = np.multiply.accumulate(CHAINS.confidence, axis=2)
    happened = CHAINS.accepted[..., None] > np.arange(5)
    np.testing.assert_allclose(predicted.mean((0, 1)), happened.mean((0, 1)), atol=0.01)
    first, came = CHAINS.confidence[..., 0].ravel(), happened[..., 0].ravel()
    high, low = came[first > 0.6].mean(), came[first < 0.3].mean()
    assert high > 0.6 > 0.3 > low
    assert CHAINS.of("code").accept_length() > CHAINS.of("math").accept_length() > CHAINS.of("chat").accept_length()


def test_plain_decoding_takes_what_the_table_says() -> None:
    none = simulate(Fixed(0), FREE, CHAINS, 4, requests=20, noise=0.0)
    assert none.throughput == pytest.approx(4 / 0.02, rel=1e-6)
    assert none.budget == 0


def test_when_verifying_is_free_everything_is_verified() -> None:
    results = {name: simulate(arm, FREE, CHAINS, 4, requests=40) for name, arm in arms(FREE, 5).items()}
    assert results["causal"].budget == pytest.approx(5, abs=0.1)
    # Below the mean over rounds: a request that accepts little has more rounds.
    assert 0.8 < results["fixed5"].throughput / (4 / 0.02 * CHAINS.accept_length()) < 1.0
    lengths = [results[f"fixed{k}"].throughput for k in range(1, 6)]
    assert lengths == sorted(lengths)
    # The same requests in every run: an unguarded policy that verifies everything does what `fixed5` does.
    assert results["causal"].throughput == pytest.approx(results["fixed5"].throughput, rel=1e-6)


def test_when_drafting_never_pays_the_guard_stops_it() -> None:
    dear = tables.synthetic(lambda counts: 0.01 * counts, draft=0.5)
    guarded = simulate(Guarded(dear, 5, "lagged"), dear, CHAINS, 8, requests=40, warm_seconds=20.0)
    none = simulate(Fixed(0), dear, CHAINS, 8, requests=40)
    assert guarded.throughput > 0.95 * none.throughput


def test_gpu_tables_are_flat_then_rise_in_steps() -> None:
    table = tables.gpu_table(tables.H100, tables.DENSE_8B, gamma=7)
    seconds = table.round_seconds(64, 64 * 500, 7)
    assert seconds[65] == seconds[128] < seconds[129]
    assert table.round_seconds(1, 500, 7)[8] < 1.2 * table.undrafted_seconds(1, 500)
    assert seconds[512] > 1.8 * seconds[64]
    bigger = tables.gpu_table(tables.H200, tables.DENSE_8B, gamma=7)
    assert bigger.undrafted_seconds(1, 500) < table.undrafted_seconds(1, 500)


def test_a_wrong_table_is_wrong_in_the_tokens_only() -> None:
    truth = tables.synthetic(tables.knee)
    wrong = tables.scaled(truth, 3.0)
    a, b = truth.round_seconds(16, 0, 5), wrong.round_seconds(16, 0, 5)
    assert b[96] - b[16] == pytest.approx(3 * (a[96] - a[16]))
    assert wrong.undrafted_seconds(16, 0) == truth.undrafted_seconds(16, 0)


def record(folder: Path, rounds: int) -> Path:
    header = {"format": "dspark-rounds", "version": 1, "gamma": 2, "identity": None}
    lines = [header]
    for i in range(rounds):
        rows = {
            "rid": ["cal-math-0", "other"],
            "temperature": [0, 0],
            "coupled": [False, False],
            "length": [2, 1],
            "accepted": [i % 3, 1],
            "explored": [True, False],
            "limit": [2, 2],
            "confidence": [[0.9, i / 100], [0.5, 0.5]],
        }
        line = {"time": i, "seconds": 0.1, "requests": 2, "tokens": 5, "context": 9, "drafted": True, "mode": "fixed2"}
        lines.append(line | {"rows": rows})
    (folder / "rounds-tp0-dp0-1-0.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return folder


def test_recorded_requests_are_those_that_verified_everything_by_choice(tmp_path: Path) -> None:
    chains: Chains = recorded(RoundLog.open(record(tmp_path, 12)))
    assert chains.domain.tolist() == ["math"]
    assert chains.accepted[0].tolist() == [0, 1, 2] * 4
    np.testing.assert_allclose(chains.confidence[0, :, 1], np.arange(12) / 100, rtol=1e-6)
    with pytest.raises(DSparkError, match="no request"):
        recorded(RoundLog.open(record(tmp_path, 7)))
