"""A seed's text is the same plain, drafted, in any batch and under any policy (known case 16)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sglang_dspark.evaluate.load import Request
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e

SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.9},
    "hot": {"temperature": 1.7},
    "filtered": {"temperature": 1.0, "top_k": 40, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
}
SEED = 2**40 + 17


def texts(server: ServerProcess, requests: list[Request], sampling: list[dict[str, Any]]) -> list[str]:
    """All sent together; greedy neighbours and seedless ones may be among them."""
    body = {
        "input_ids": [request.input_ids for request in requests],
        "sampling_params": [{"max_new_tokens": 24, **each} for each in sampling],
    }
    response = httpx.post(f"{server.base_url}/generate", json=body, timeout=300)
    response.raise_for_status()
    answers = response.json()
    assert all(answer["meta_info"]["finish_reason"]["type"] != "abort" for answer in answers)
    return [answer["text"] for answer in answers]


@pytest.fixture(scope="module")
def alone(plain: ServerProcess, requests: list[Request]) -> dict[str, list[str]]:
    """Plain serving, one request at a time."""
    return {
        name: [texts(plain, [r], [{**sampling, "sampling_seed": SEED + i}])[0] for i, r in enumerate(requests[:3])]
        for name, sampling in SAMPLING.items()
    }


@pytest.mark.known_case(16)
@pytest.mark.parametrize("arm", ["plain", "dspark", "threshold", "undrafted"])
def test_same_text_among_neighbours(
    arm: str, alone: dict[str, list[str]], requests: list[Request], request: pytest.FixtureRequest
) -> None:
    """All seeded requests at once, each between requests that filter, sample without a seed, or decode greedily."""
    server = request.getfixturevalue(arm)
    batch = [(r, {**sampling, "sampling_seed": SEED + i}) for sampling in SAMPLING.values()
             for i, r in enumerate(requests[:3])]  # fmt: skip
    others: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}, {"temperature": 0}]
    batch += [(requests[5], other) for other in others]
    found = texts(server, [r for r, _ in batch], [s for _, s in batch])
    assert found[: 3 * len(SAMPLING)] == [text for name in SAMPLING for text in alone[name]]


def test_drafts_are_accepted_and_seeds_matter(dspark: ServerProcess, requests: list[Request]) -> None:
    body = {
        "input_ids": [requests[0].input_ids] * 4,
        "sampling_params": [{"temperature": 0.7, "max_new_tokens": 48, "sampling_seed": s} for s in (1, 1, 2, 3)],
    }
    answers = httpx.post(f"{dspark.base_url}/generate", json=body, timeout=300).json()
    same, again, *others = (answer["text"] for answer in answers)
    assert same == again
    assert len({same, *others}) == 3
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 0


def test_unseeded_requests_stay_independent(dspark: ServerProcess, requests: list[Request]) -> None:
    """Six unseeded requests for one prompt, with a seeded one among them, do not share their noise."""
    sampling: list[dict[str, Any]] = [{"temperature": 1.5} for _ in range(6)]
    found = texts(dspark, [requests[1]] * 7, [*sampling, {"temperature": 1.5, "sampling_seed": 3}])
    assert len(set(found)) == 7
