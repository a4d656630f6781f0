"""The traffic: enough rounds, numbered requests, and wordings where greedy answers would repeat."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from sglang_dspark.calibrate import traffic as module
from sglang_dspark.calibrate.traffic import WORDINGS, Phase, Traffic, TrafficError, drive, labelled_rounds
from sglang_dspark.evaluate.load import Request, Result
from sglang_dspark.evaluate.prompts import Prompt

PROMPTS = [Prompt("m-1", "math", "one"), Prompt("c-1", "chat", "two")]
GREEDY, SAMPLED = Phase("fit", 0.0, False, 100), Phase("fit", 1.0, True, 100)


class Tokenizer:
    """Every character is a token."""

    chat_template = "plain"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return messages[0]["content"]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) for c in text]


def text(request: Request) -> str:
    return "".join(map(chr, request.input_ids))


def answer(request: Request, rounds: int = 10, drafted: int = 50, reason: str = "stop") -> Result:
    meta = {
        "spec_verify_ct": rounds,
        "spec_num_proposed_drafts": drafted,
        "spec_num_correct_drafts": 20,
        "completion_tokens": 31,
    }
    return Result(request.id, request.domain, 0.0, output_ids=[0] * 31, finish_reason=reason, meta=meta)


def serve(monkeypatch: pytest.MonkeyPatch, *answers: Result | None) -> list[str]:
    sent: list[str] = []

    async def send(_session: Any, _url: str, request: Request) -> Result:
        sent.append(request.id)
        return (answers[len(sent) - 1] if len(sent) <= len(answers) else None) or answer(request)

    monkeypatch.setattr(module, "send", send)
    return sent


def test_greedy_prompts_come_back_in_other_words_and_end() -> None:
    made = list(Traffic(Tokenizer(), 64).requests(PROMPTS, GREEDY))
    assert len(made) == len({text(r) for r in made}) == 2 * len(WORDINGS)
    assert [text(r) for r in made[:2]] == ["one", "two"]
    assert all("sampling_seed" not in r.sampling for r in made)


def test_sampled_prompts_never_end_and_seeds_differ() -> None:
    made = list(itertools.islice(Traffic(Tokenizer(), 64).requests(PROMPTS, SAMPLED), 50))
    assert len({r.sampling["sampling_seed"] for r in made}) == 50


def test_requests_are_numbered_through_the_run_and_keep_their_origin() -> None:
    traffic = Traffic(Tokenizer(), 64)
    first = list(traffic.requests(PROMPTS, GREEDY))
    second = next(traffic.requests(PROMPTS, Phase("report", 1.0, False, 1)))
    assert first[0].rid == "cal-math-0"
    assert second.rid == f"cal-math-{len(first)}"
    # All wordings of a prompt are one group; another part's are never the same group.
    assert {traffic.origins[r.id].group for r in first} == {"fit:m-1", "fit:c-1"}
    assert traffic.origins[second.id].group == "report:m-1"


def test_driving_stops_when_there_are_enough_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, seen = serve(monkeypatch), []
    stream = Traffic(Tokenizer(), 64).requests(PROMPTS, SAMPLED)
    assert drive("http://nowhere", stream, SAMPLED, 4, seen.append) >= 100
    assert 10 <= len(sent) <= 14
    assert set(seen) == {10}


def test_too_few_prompts_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch)
    stream = Traffic(Tokenizer(), 64).requests(PROMPTS, GREEDY)
    phase = Phase("fit", 0.0, False, 1_000)
    with pytest.raises(TrafficError, match=r"200 of 1000 rounds; give more prompts"):
        drive("http://nowhere", stream, phase, 4)


def test_a_phase_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, issued, origins = serve(monkeypatch), {}, {}
    stream = Traffic(Tokenizer(), 64, origins).requests(PROMPTS, GREEDY, issued)
    assert drive("http://nowhere", stream, GREEDY, 1) == 100
    assert issued == {"fit T=0": 10}
    rest = Traffic(Tokenizer(), 64, origins).requests(PROMPTS, GREEDY, issued)
    assert drive("http://nowhere", rest, Phase("fit", 0.0, False, 150), 1, have=100) == 150
    assert sent == [f"cal-{'chat' if i % 2 else 'math'}-{i}" for i in range(15)]


def test_time_can_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> Result:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(module, "send", never)
    stream = Traffic(Tokenizer(), 64).requests(PROMPTS, SAMPLED)
    assert drive("http://nowhere", stream, SAMPLED, 4, have=7, deadline=time.monotonic() + 0.05) == 7


def test_a_failed_request_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Result("x", "math", 0.0, error="HTTP 500: no memory")
    serve(monkeypatch, None, failed)
    stream = Traffic(Tokenizer(), 64).requests(PROMPTS, SAMPLED)
    with pytest.raises(TrafficError, match="no memory"):
        drive("http://nowhere", stream, SAMPLED, 4)


def test_rounds_near_the_token_limit_have_no_full_label() -> None:
    request = Request("a", "math", [1], {})
    assert labelled_rounds(answer(request)) == 10
    assert labelled_rounds(answer(request, reason="length")) == 5
    with pytest.raises(TrafficError, match="speculation"):
        labelled_rounds(answer(request, drafted=0))
