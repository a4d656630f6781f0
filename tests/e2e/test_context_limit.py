"""Prompts that end 1 to 9 tokens before `--context-length`: speculation answers or refuses them as plain serving does.

The engine (SGLang 0.5.23) refuses a prompt of `--context-length` - 6 tokens or more, and an answer ends 2 tokens before
the limit; with speculation as without.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sglang_dspark.evaluate.endpoints import server_info
from sglang_dspark.evaluate.load import Request
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e

ANSWERED = {7: 5, 8: 6, 9: 7}  # room -> new tokens
ROOMS = range(1, 10)


def ask(server: ServerProcess, ids: list[int], **sampling: Any) -> dict[str, Any]:
    """What the server makes of one prompt: its answer, or its message."""
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}}
    response = httpx.post(f"{server.base_url}/generate", json=body, timeout=300)
    found = response.json()
    if response.status_code != 200:
        return {"status": response.status_code, "message": found["error"]["message"]}
    meta = found["meta_info"]
    return {"output_ids": found["output_ids"], "reason": meta["finish_reason"], "prompt": meta["prompt_tokens"]}


@pytest.mark.parametrize("bounded", [True, False], ids=["the room asked for", "no length given"])
def test_the_same_as_plain_serving(
    bounded: bool, plain: ServerProcess, dspark: ServerProcess, requests: list[Request]
) -> None:
    limit = server_info(plain.base_url)["context_length"]
    ids = (requests[0].input_ids * (limit // len(requests[0].input_ids) + 1))[:limit]
    for room in ROOMS:
        sampling = {"max_new_tokens": room} if bounded else {}
        expected, found = (ask(server, ids[: limit - room], **sampling) for server in (plain, dspark))
        assert found == expected
        assert len(found.get("output_ids", [])) == ANSWERED.get(room, 0), found


def test_the_blocks_of_an_answer_that_ends_at_the_limit_are_full(
    dspark: ServerProcess, requests: list[Request]
) -> None:
    """The last blocks before the limit draft beyond it."""
    limit = server_info(dspark.base_url)["context_length"]
    ids = (requests[1].input_ids * (limit // len(requests[1].input_ids) + 1))[: limit - 24]
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 24}}
    meta = httpx.post(f"{dspark.base_url}/generate", json=body, timeout=300).json()["meta_info"]
    assert meta["completion_tokens"] == 22
    assert meta["spec_num_proposed_drafts"] > 0
