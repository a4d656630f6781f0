"""Greedy output with DSpark is plain decoding's, token for token. The long form: python_bench/check_equality.py."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_dspark.evaluate.equality import EqualityReport, check_equality, greedy_requests, plain_reference
from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.prompts import echo_prompts
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e


@pytest.mark.known_case(9)
def test_alone_and_batched_cold_and_warm(
    dspark: ServerProcess, requests: list[Request], reference: list[Result]
) -> None:
    few = len(requests) // 2
    report = check_equality(dspark.base_url, requests[:few], reference[:few], batch=few)
    assert report.verdict == "equal", report.as_json()
    assert report.compared == 4 * few


def test_a_full_batch(dspark: ServerProcess, requests: list[Request], reference: list[Result]) -> None:
    report = check_equality(dspark.base_url, requests, reference, batch=len(requests), batched_only=True)
    assert report.verdict == "equal", report.as_json()
    assert report.compared == len(requests)


@pytest.mark.known_case(9)
def test_the_warm_passes_hit_the_prefix_cache(dspark: ServerProcess, requests: list[Request]) -> None:
    run_load(dspark.base_url, requests[:2], 2)
    for result in run_load(dspark.base_url, requests[:2], 2).results:
        assert result.cached_tokens >= result.prompt_tokens - 1


@pytest.mark.known_case(25)
def test_twelve_users_echo_opaque_identifiers(plain: ServerProcess, dspark: ServerProcess, tokenizer: Any) -> None:
    requests = greedy_requests(echo_prompts(12), tokenizer, max_new_tokens=32)
    report = EqualityReport()
    report.add("echo", plain_reference(plain.base_url, requests), run_load(dspark.base_url, requests, 12).results)
    assert report.verdict == "equal", report.as_json()


@pytest.mark.known_case(23)
def test_plain_against_itself_is_inconclusive(
    plain: ServerProcess, requests: list[Request], reference: list[Result]
) -> None:
    report = EqualityReport()
    report.add("plain", reference[:4], run_load(plain.base_url, requests[:4], 1).results)
    assert report.verdict == "inconclusive"
    assert not report.differences
