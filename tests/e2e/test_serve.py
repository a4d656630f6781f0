"""What a newcomer does first: ask the server something."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sglang_dspark.evaluate.endpoints import flush_cache, metrics, server_info
from sglang_dspark.evaluate.load import Request, run_load
from sglang_dspark.evaluate.prompts import apply_chat
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e

QUESTION = "List the first five prime numbers."


def chat(server: ServerProcess, **fields: Any) -> httpx.Response:
    model = httpx.get(f"{server.base_url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, **fields}
    return httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=120)


def test_chat_completion(dspark: ServerProcess) -> None:
    answer = chat(dspark, temperature=0).json()
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert 0 < answer["usage"]["completion_tokens"] <= 32


def test_streaming_gives_the_same_text(dspark: ServerProcess) -> None:
    whole = chat(dspark, temperature=0).json()["choices"][0]["message"]["content"]
    response = chat(dspark, temperature=0, stream=True)
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [choice["delta"].get("content") for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(piece or "" for piece in pieces) == whole
    assert len(pieces) > 2


@pytest.mark.known_case(24)
def test_sampling_without_a_temperature_speculates(dspark: ServerProcess, tokenizer: Any) -> None:
    request = Request("q", "chat", apply_chat(tokenizer, QUESTION), {"max_new_tokens": 32, "ignore_eos": True})
    (result,) = run_load(dspark.base_url, [request], 1).results
    assert result.error is None
    assert len(result.output_ids) == 32
    assert result.speculation.drafted > 0


def test_metrics_have_the_accept_length(dspark: ServerProcess) -> None:
    chat(dspark, temperature=0)
    assert metrics(dspark.base_url)["sglang:spec_accept_length"] >= 1.0


def test_meta_info_counts_every_token(dspark: ServerProcess, requests: list[Request]) -> None:
    flush_cache(dspark.base_url)
    run = run_load(dspark.base_url, requests[:4], 4)
    assert not run.errors
    gamma = server_info(dspark.base_url)["speculative_num_draft_tokens"] - 1
    for result in run.results:
        speculation = result.speculation
        assert len(result.output_ids) == result.meta["completion_tokens"]
        # What the last round accepted may lie behind the end of the answer.
        assert speculation.emitted <= speculation.accepted + speculation.rounds <= speculation.emitted + gamma
        assert 0 < speculation.drafted <= gamma * speculation.rounds
