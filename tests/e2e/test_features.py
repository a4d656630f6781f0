"""Request features under speculation: greedy answers equal plain serving's, whichever policy and scheduling is on.

The engine's own round applies one state to a whole block; these features differ from row to row.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from sglang_dspark.evaluate.load import Request
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e

FEATURES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": 1.0},
    "combined": {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"260": -3.0}},
    "min_new_tokens": {"min_new_tokens": 20},
    "logit_bias": {"logit_bias": {"30": -100.0, "284": 4.0}},
    "stop_string": {"stop": ["the", "\n\n"]},
    "stop_token": {"stop_token_ids": [198]},
    "grammar": {"regex": r"(yes|no), because [a-z ]{10,40}\."},
    "top_k_1": {"temperature": 1.0, "top_k": 1},
    "length_inside_a_block": {"max_new_tokens": 3},
    "one_token": {"max_new_tokens": 1},
    "ignore_eos": {"ignore_eos": True, "max_new_tokens": 40},
}


Sampling = dict[str, Any]
ARMS = ["dspark", "threshold", "undrafted"]
Answers = dict[str, dict[str, list[dict[str, Any]]]]


def generate(
    server: ServerProcess, requests: list[Request], sampling: Sampling | list[Sampling], **fields: Any
) -> list[dict[str, Any]]:
    """Answers to requests sent together, with one set of parameters or one for each."""
    common = {"temperature": 0, "max_new_tokens": 24}
    body = {
        "input_ids": [request.input_ids for request in requests],
        "sampling_params": [common | s for s in sampling] if isinstance(sampling, list) else common | sampling,
        **fields,
    }
    response = httpx.post(f"{server.base_url}/generate", json=body, timeout=300)
    response.raise_for_status()
    answers = response.json()
    assert all(answer["meta_info"]["finish_reason"]["type"] != "abort" for answer in answers)
    return answers


@pytest.fixture(scope="module")
def answers(fleet: dict[str, ServerProcess], plain: ServerProcess, requests: list[Request]) -> Answers:
    """Of every server to three prompts with each feature, by arm and feature; all features side by side."""
    found = {}
    for arm, server in fleet.items():
        flat = generate(server, requests[:3] * len(FEATURES), [s for s in FEATURES.values() for _ in range(3)])
        found[arm] = {feature: flat[3 * i : 3 * i + 3] for i, feature in enumerate(FEATURES)}
    return found


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.known_case(17, 18)
def test_equals_plain_serving(feature: str, arm: str, answers: Answers) -> None:
    expected, found = answers["plain"][feature], answers[arm][feature]
    assert [a["text"] for a in found] == [a["text"] for a in expected]
    assert [a["meta_info"]["finish_reason"] for a in found] == [a["meta_info"]["finish_reason"] for a in expected]


@pytest.mark.known_case(17)
def test_grammar_holds_for_sampled_requests(dspark: ServerProcess, requests: list[Request]) -> None:
    sampling = {**FEATURES["grammar"], "temperature": 1.0, "max_new_tokens": 60}
    for answer in generate(dspark, requests[:6], sampling):
        text = answer["text"]
        assert re.fullmatch(FEATURES["grammar"]["regex"], text), text
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_log_probabilities_equal_plain_serving(
    plain: ServerProcess, dspark: ServerProcess, requests: list[Request]
) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 3}
    for a, b in zip(
        generate(plain, requests[:3], {}, **fields), generate(dspark, requests[:3], {}, **fields), strict=True
    ):
        expected, found = (x["meta_info"]["output_token_logprobs"] for x in (a, b))
        assert [token for _, token, _ in found] == [token for _, token, _ in expected]
        assert [p for p, _, _ in found] == pytest.approx([p for p, _, _ in expected], abs=2e-4)


def test_candidates_equal_plain_serving(plain: ServerProcess, dspark: ServerProcess, requests: list[Request]) -> None:
    """Top candidates of every output token, chosen tokens' probabilities, and those of the prompt."""
    fields = {
        "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [28, 198], "logprob_start_len": 0
    }  # fmt: skip
    expected, found = (generate(server, requests[2:4], {"max_new_tokens": 12}, **fields) for server in (plain, dspark))
    for a, b in zip(expected, found, strict=True):
        for name in ("input_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
            left, right = a["meta_info"][name], b["meta_info"][name]
            assert len(left) == len(right)
            flat = [
                [
                    (p, token)
                    for entry in rows
                    if entry
                    for p, token, *_ in ([entry] if name.startswith("input") else entry)
                ]
                for rows in (left, right)
            ]
            assert [token for _, token in flat[0]] == [token for _, token in flat[1]], name
            values = [[p for p, _ in part if p is not None] for part in flat]
            assert values[1] == pytest.approx(values[0], abs=5e-4), name


def test_several_answers_to_one_prompt(plain: ServerProcess, dspark: ServerProcess, requests: list[Request]) -> None:
    (expected,) = generate(plain, requests[:1], {})
    answers = generate(dspark, requests[:1], {"n": 3})
    assert [answer["text"] for answer in answers] == [expected["text"]] * 3


def test_custom_logit_processor(plain: ServerProcess, dspark: ServerProcess, requests: list[Request]) -> None:
    """A processor with parameters of its own, for one of two requests; on both sides, for every drafted position."""
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    free = generate(plain, requests[:2], {})
    banned = sorted({token for answer in free for token in answer["output_ids"][2:10]})
    sampling = {"custom_params": {"token_ids": banned}}
    fields = {"custom_logit_processor": [DisallowedTokensLogitsProcessor().to_str(), None]}
    expected, found = (generate(server, requests[:2], sampling, **fields) for server in (plain, dspark))
    assert not set(banned) & set(found[0]["output_ids"])
    assert found[1]["output_ids"] == free[1]["output_ids"]
    assert [answer["output_ids"] for answer in found] == [answer["output_ids"] for answer in expected]


@pytest.mark.known_case(20)
def test_no_draft_token_is_verified_when_the_draft_does_not_run(
    undrafted: ServerProcess, requests: list[Request]
) -> None:
    """Known case 20."""
    for answer in generate(undrafted, requests[:3], {}):
        meta = answer["meta_info"]
        assert meta["spec_num_correct_drafts"] == 0
        assert meta["spec_cap_length"] == 1.0
