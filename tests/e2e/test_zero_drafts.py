"""Speculation that never drafts agrees with plain decoding, which proves nothing."""

from __future__ import annotations

import pytest

from sglang_dspark.evaluate.equality import EqualityReport
from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e


@pytest.mark.known_case(23)
def test_verify_length_zero_is_inconclusive(
    undrafted: ServerProcess, requests: list[Request], reference: list[Result]
) -> None:
    results = run_load(undrafted.base_url, requests, 8).results
    report = EqualityReport()
    report.add("batched, cold", reference, results)
    assert report.verdict == "inconclusive"
    assert len(report.differences) == len(report.ties) <= 1
    assert all(result.speculation.rounds == len(result.output_ids) - 1 for result in results)
