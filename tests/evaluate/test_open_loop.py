from __future__ import annotations

import itertools

import pytest
from evaluation_fakes import FakeEngine

from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.open_loop import poisson_arrivals, run_open_loop
from sglang_dspark.evaluate.summary import busy_tokens_per_second, summarise


def make(count: int, tokens: int = 3) -> list[Request]:
    return [Request(f"r{i}", "math", [i, 100 * i], {"max_new_tokens": tokens}) for i in range(count)]


def test_requests_are_sent_when_they_arrive_whatever_is_running(engine: FakeEngine) -> None:
    engine.delay = 0.2
    run = run_open_loop(engine.base_url, make(4), [0.0, 0.05, 0.1, 0.9])
    sent = [result.sent_at - run.results[0].sent_at for result in run.results]
    assert sent == pytest.approx([0.0, 0.05, 0.1, 0.9], abs=0.03)
    assert engine.most_in_flight == 3
    assert not run.errors


def test_arrivals_must_fit() -> None:
    for arrivals in ([0.0], [0.2, 0.1]):
        with pytest.raises(ValueError, match="ascending arrival times"):
            run_open_loop("http://127.0.0.1:1", make(2), arrivals)


def test_poisson_arrivals() -> None:
    times = poisson_arrivals(4000, 10.0, seed=0)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.1)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


def test_a_conversation_goes_on_until_it_ends_or_fails(engine: FakeEngine) -> None:
    def after(result: Result) -> Request | None:
        turn = int(result.id.split("/")[1]) + 1
        if turn > 3:
            return None
        return Request(f"x/{turn}", "math", [turn, result.output_ids[-1]], {"max_new_tokens": 2}, then=after)

    first = Request("x/1", "math", [1, 100], {"max_new_tokens": 2}, then=after)
    run = run_load(engine.base_url, [first, *make(1)], concurrency=1)
    assert [result.id for result in run.results] == ["x/1", "x/2", "x/3", "r0"]
    assert run.results[1].output_ids == [103, 104]
    engine.refused = {2}
    run = run_load(engine.base_url, [first], concurrency=1)
    assert [result.error is None for result in run.results] == [True, False]


def result(sent_at: float, seconds: float, tokens: int) -> Result:
    arrivals = [(seconds * (i + 1) / tokens, i + 1) for i in range(tokens)]
    return Result("x", "d", sent_at, list(range(tokens)), arrivals=arrivals, seconds=seconds)


def test_the_tail_in_which_users_run_dry_is_not_busy_time() -> None:
    # Two users: one answers in 1 s, twice; the other in 4 s. From 2 s on, one of them has nothing left to send.
    answers = [result(0.0, 1.0, 10), result(1.0, 1.0, 10), result(0.0, 4.0, 40)]
    assert busy_tokens_per_second(answers) == pytest.approx((10 + 10 + 20) / 2.0)
    assert busy_tokens_per_second([]) == 0.0
    one = [result(0.0, 2.0, 10)]
    assert busy_tokens_per_second(one) == pytest.approx(5.0)


def test_percentiles_of_a_run(engine: FakeEngine) -> None:
    figures = summarise(run_load(engine.base_url, make(6, tokens=9), 2))
    assert figures.ttft_p50 is not None
    assert figures.ttft_p50 <= figures.ttft_p95 <= figures.ttft_p99  # type: ignore[operator]
    assert figures.user_tokens_per_second_p5 <= figures.user_tokens_per_second  # type: ignore[operator]
    assert figures.budget == 4
    # 9 tokens: one from the prefill, eight from four rounds of one anchor and four drafts.
    assert figures.verified_per_emitted == pytest.approx(4 * 5 / 8)
