from __future__ import annotations

import asyncio

import pytest
from evaluation_fakes import FakeEngine

from sglang_dspark.evaluate.load import Request, Result, Speculation, open_session, run_load, send

TOKENS = 9


def make(count: int, **options: object) -> list[Request]:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS}
    return [Request(f"r{i}", "math", [i, 100 * i], sampling, **options) for i in range(count)]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("piece", [1, 2, 7, 20])
def test_streams_are_put_together(engine: FakeEngine, incremental: bool, piece: int) -> None:
    engine.incremental, engine.piece = incremental, piece
    run = run_load(engine.base_url, make(5), concurrency=2)
    assert not run.errors
    for i, result in enumerate(run.results):
        expected = [100 * i + 1 + k for k in range(TOKENS)]
        assert result.output_ids == expected
        assert result.text == "".join(f" {token}" for token in expected)
        assert result.finish_reason == "length"
        assert (result.id, result.domain, result.prompt_tokens) == (f"r{i}", "math", 2)
        assert result.arrivals[0][1] == 1
        assert result.arrivals[-1][1] == TOKENS
        assert 0 < result.ttft <= result.seconds <= run.seconds


def test_whole_answers_without_streaming(engine: FakeEngine) -> None:
    (result,) = run_load(engine.base_url, make(1, stream=False, top_logprobs=3), 1).results
    assert len(result.output_ids) == TOKENS
    assert result.decode_tokens_per_second() is None
    assert engine.bodies[0]["top_logprobs_num"] == 3
    assert engine.bodies[0]["return_logprob"]


def test_concurrency_is_kept_and_results_are_in_order(engine: FakeEngine) -> None:
    engine.delay = 0.01
    seen: list[Result] = []
    run = run_load(engine.base_url, make(12), concurrency=3, on_result=seen.append)
    assert engine.most_in_flight == 3
    assert [result.id for result in run.results] == [f"r{i}" for i in range(12)]
    assert len(seen) == 12


def test_failures_are_reported_one_by_one(engine: FakeEngine) -> None:
    engine.broken, engine.refused = {1}, {3}
    run = run_load(engine.base_url, make(5), concurrency=5)
    assert [result.id for result in run.errors] == ["r1", "r3"]
    assert "ended before" in (run.errors[0].error or "")
    assert "400" in (run.errors[1].error or "")
    assert "prompt refused" in (run.errors[1].error or "")
    assert len(run.answered) == 3


def test_timeout_and_no_server_are_errors(engine: FakeEngine) -> None:
    engine.delay = 5
    (late,) = run_load(engine.base_url, make(1), 1, request_seconds=0.2).errors
    assert "0.2 s" in (late.error or "")
    (nobody,) = run_load("http://127.0.0.1:9", make(1), 1).errors
    assert "Connect" in (nobody.error or "")
    with pytest.raises(ValueError, match="r0 has no output token"):
        _ = nobody.ttft


def test_cancelling_drops_the_connection(engine: FakeEngine) -> None:
    engine.delay = 0.2

    async def cancel() -> None:
        async with open_session() as session:
            task = asyncio.create_task(send(session, engine.base_url, make(1)[0]))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())


def test_concurrency_must_be_positive(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        run_load(engine.base_url, make(1), 0)


def test_times_per_token() -> None:
    result = Result("r", "d", 0.0, arrivals=[(1.0, 1), (2.0, 3), (2.5, 4)])
    assert result.inter_token_seconds() == [0.5, 0.5, 0.5]
    assert result.decode_tokens_per_second() == 2.0
    assert Result("r", "d", 0.0).decode_tokens_per_second() is None


def test_speculation_prefers_what_was_really_verified() -> None:
    meta = {
        "completion_tokens": 21,
        "spec_verify_ct": 10,
        "spec_num_proposed_drafts": 40,
        "spec_num_correct_drafts": 11,
    }
    assert Speculation.from_meta(meta) == Speculation(rounds=10, drafted=40, accepted=11, emitted=20)
    assert Speculation.from_meta({**meta, "spec_cap_length": 2.5}).drafted == 15
    assert Speculation.from_meta({**meta, "spec_cap_length": 1.0}).drafted == 0
    assert Speculation.from_meta({"completion_tokens": 21}) == Speculation()
