"""From a steady run to the figures of a cell."""

from __future__ import annotations

import pytest

from sglang_dspark.ab.bench_format import bench_record
from sglang_dspark.ab.health import failure_kind
from sglang_dspark.ab.measure import _steady, not_sent
from sglang_dspark.ab.traffic import Scenario
from sglang_dspark.evaluate.load import Result
from sglang_dspark.evaluate.steady import SteadyRun


def result(sent_at: float, first: float, count: int, finish: str = "length") -> Result:
    arrivals = [(first + 0.1 * i, i + 1) for i in range(count)]
    seconds = arrivals[-1][0] if finish else 0.0
    meta = {"prompt_tokens": 7, "completion_tokens": count}
    return Result("r", "math", sent_at, list(range(count)), "t", arrivals, finish, seconds, meta)


def test_what_the_end_cut_off_counts_as_tokens_but_not_as_an_answer() -> None:
    # Both users ask at 9.0 and wait long for their first token; from 10.0 on both are busy.
    results = [result(9.0, 1.0, 11), result(9.0, 0.9, 5), result(10.5, 0.2, 12, finish="")]
    measured = _steady(SteadyRun(results, 10.0, 12.0, []))
    figures = measured.figures
    assert figures["busy_tokens_per_second"] == figures["output_tokens_per_second"] > 0
    assert (figures["requests"], figures["failed"]) == (3, 0)
    assert figures["ttft_p50"] == pytest.approx(0.2)  # of the one that was sent while both were busy
    assert figures["latency_p50"] == pytest.approx((2.0 + 1.3) / 2)
    record = bench_record("a", Scenario("closed", 2, 0.0), measured, "d")
    assert record["completed"] == 2
    assert record["median_ttft_ms"] > 0
    assert record["max_concurrency"] == 2


def test_a_failure_ends_the_cell_and_is_in_it() -> None:
    failed = Result("f", "math", 10.0, error="HTTP 500: no")
    measured = _steady(SteadyRun([result(9.0, 0.5, 5)], 10.0, 10.0, [failed]))
    assert (measured.figures["requests"], measured.figures["failed"]) == (2, 1)
    assert measured.figures["busy_tokens_per_second"] == 0.0


def test_a_user_who_is_forgotten_is_a_failure() -> None:
    busy = [result(10.0 + i, 0.2, 5) for i in range(5)]
    well, forgotten = (_steady(SteadyRun(busy, 10.0, 15.0, [], silent)) for silent in (0.5, 4.0))
    assert well.figures["failed"] == 0
    assert forgotten.figures["failed"] == 1
    assert failure_kind(forgotten.run.errors[0].error or "") == "no answer in time"


def test_a_server_that_cannot_be_asked() -> None:
    measured = not_sent(3, "ServerStartError: it ended")
    assert (measured.figures["requests"], measured.figures["failed"]) == (3, 3)


def test_accept_length_is_of_all_rounds_not_only_of_answers_that_ended() -> None:
    fast = result(10.0, 0.1, 9)
    fast.arrivals = [(0.1, 1), (0.2, 5), (0.3, 9)]
    fast.meta |= {"spec_verify_ct": 2, "spec_num_proposed_drafts": 8, "spec_num_correct_drafts": 6}
    slow = result(10.0, 0.1, 7, finish="")  # a token a round, and not at its end
    figures = _steady(SteadyRun([fast, slow], 10.0, 11.0, [])).figures
    assert figures["accept_length"] == pytest.approx((8 + 6) / (2 + 6))
    assert figures["budget"] == 4
    assert figures["verified_per_emitted"] == pytest.approx(5 / (14 / 8))
