from __future__ import annotations

from dataclasses import replace

import pytest
from evaluation_fakes import FakeEngine, FakeTokenizer

from sglang_dspark.evaluate.accept import AcceptError, measure_accept
from sglang_dspark.evaluate.load import LoadRun, Request, Result, Speculation, run_load
from sglang_dspark.evaluate.prompts import Prompt
from sglang_dspark.evaluate.summary import accept_by_domain, summarise


def result(domain: str, rounds: int, emitted: int, error: str | None = None) -> Result:
    meta = {
        "completion_tokens": emitted + 1,
        "spec_verify_ct": rounds,
        "spec_num_proposed_drafts": 4 * rounds,
        "spec_num_correct_drafts": emitted - rounds,
    }
    arrivals = [(0.1, 1), (1.1, emitted + 1)]
    return Result("x", domain, 0.0, list(range(emitted + 1)), arrivals=arrivals, meta=meta, error=error)


def test_figures_of_a_run() -> None:
    run = LoadRun([result("math", 10, 20), result("code", 10, 40), result("code", 1, 1, error="boom")], seconds=2.0)
    figures = summarise(run)
    assert (figures.requests, figures.failed, figures.output_tokens) == (3, 1, 62)
    assert figures.output_tokens_per_second == 31.0
    assert figures.user_tokens_per_second == pytest.approx(30.0)
    assert figures.ttft_p50 == pytest.approx(0.1)
    assert figures.accept_length == 3.0
    assert figures.verified_per_round == 5.0
    assert figures.speculation == Speculation(rounds=20, drafted=80, accepted=40, emitted=60)
    assert figures.as_json()["speculation"]["rounds"] == 20


def test_without_speculation_there_is_no_accept_length(engine: FakeEngine) -> None:
    engine.drafts = False
    figures = summarise(run_load(engine.base_url, [Request("a", "d", [1], {"max_new_tokens": 5})], 1))
    assert figures.accept_length is None
    assert figures.verified_per_round is None
    assert figures.output_tokens == 5


def test_a_run_in_which_everything_failed_has_no_invented_figures() -> None:
    figures = summarise(LoadRun([Result("x", "d", 0.0, error="boom")], 1.0))
    assert figures.failed == 1
    assert figures.output_tokens_per_second == 0
    assert figures.ttft_p50 is figures.user_tokens_per_second is figures.inter_token_p95 is None


def test_accept_length_by_domain_and_the_mean_of_domains() -> None:
    results = [result("math", 10, 20)] * 3 + [result("code", 10, 40)] + [result("chat", 0, 0)]
    lengths = accept_by_domain(results)
    assert {name: length.value for name, length in lengths.items()} == {"math": 2.0, "code": 4.0, "mean": 3.0}
    assert lengths["mean"].low == lengths["mean"].high == 3.0
    assert accept_by_domain([result("chat", 0, 0)]) == {}


def test_repeating_a_prompt_does_not_narrow_the_interval() -> None:
    two = [replace(result("math", 10, 20), id="a"), replace(result("math", 10, 40), id="b")]
    assert accept_by_domain(two * 50) == accept_by_domain(two)


PROMPTS = [Prompt(f"p{i}", "math" if i % 2 else "chat", "hello") for i in range(4)]


def test_measure_accept(engine: FakeEngine) -> None:
    report = measure_accept(engine.base_url, PROMPTS, FakeTokenizer(), 1.0, max_new_tokens=9)
    assert report.by_domain["mean"].value == 2.0
    assert report.output_tokens == 36
    assert report.speculation.rounds == 16
    assert all(body["sampling_params"]["temperature"] == 1.0 for body in engine.bodies)


def test_measure_accept_refuses_to_report_nothing(engine: FakeEngine) -> None:
    engine.cap_length = 1.0
    with pytest.raises(AcceptError, match="inconclusive"):
        measure_accept(engine.base_url, PROMPTS, FakeTokenizer(), 0.0, max_new_tokens=9)
    engine.refused = {ord("<")}
    with pytest.raises(AcceptError, match="4 of 4 requests failed"):
        measure_accept(engine.base_url, PROMPTS, FakeTokenizer(), 0.0, max_new_tokens=9)
