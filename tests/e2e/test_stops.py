"""An accepted run that passes the end of an answer: the next turn sees the returned tokens only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_dspark.evaluate.endpoints import flush_cache
from sglang_dspark.evaluate.equality import EqualityReport
from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e


@pytest.mark.known_case(8)
def test_the_next_turn_after_a_stop_inside_a_block(
    plain: ServerProcess, dspark: ServerProcess, requests: list[Request], reference: list[Result]
) -> None:
    """Answers end after 1 to 8 tokens, by length or at a stop token, so that a block of 7 passes the end by up to 7."""
    flush_cache(dspark.base_url)
    report = EqualityReport()
    drafted = 0
    for length in range(1, 9):
        ends = (
            {"max_new_tokens": length},
            {"max_new_tokens": 24, "stop_token_ids": [reference[0].output_ids[length - 1]]},
        )
        first = [
            replace(requests[0], id=f"end {length} {i}", sampling=end | {"temperature": 0})
            for i, end in enumerate(ends)
        ]
        expected, found = (run_load(server.base_url, first, 1).results for server in (plain, dspark))
        report.add("first turn", expected, found)
        drafted += sum(result.speculation.drafted for result in found)
        # The user goes on with a token of this turn alone, so that only the answer before it can be cached.
        turns = [
            replace(
                request,
                id=f"{request.id} next",
                input_ids=[*request.input_ids, *result.output_ids, 400 + 2 * length + i, 284],
                sampling={"max_new_tokens": 12, "temperature": 0},
            )
            for i, (request, result) in enumerate(zip(first, found, strict=True))
        ]
        expected, found = (run_load(server.base_url, turns, 1).results for server in (plain, dspark))
        report.add("next turn", expected, found)
        for turn, result in zip(turns, found, strict=True):
            assert result.cached_tokens <= len(turn.input_ids) - 2
    assert drafted > 0
    assert len(report.differences) == len(report.ties) <= 1, report.as_json()
