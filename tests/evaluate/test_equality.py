from __future__ import annotations

import pytest
from evaluation_fakes import FakeEngine, FakeTokenizer

from sglang_dspark.evaluate.equality import (
    EqualityError,
    EqualityReport,
    check_equality,
    first_difference,
    greedy_requests,
)
from sglang_dspark.evaluate.load import Result, run_load
from sglang_dspark.evaluate.prompts import Prompt


def plain(ids: list[int], runner_up: float = -3.0) -> Result:
    """Each position's best candidate is the token itself at -1, the next one 99 at `runner_up`."""
    candidates = [[[-1.0, token, None], [runner_up, 99, None]] for token in ids]
    return Result("p", "d", 0.0, ids, meta={"output_top_logprobs": candidates})


def drafted(ids: list[int], drafts: int = 4) -> Result:
    meta = {
        "completion_tokens": len(ids),
        "spec_verify_ct": 1,
        "spec_num_proposed_drafts": drafts,
        "spec_num_correct_drafts": 0,
    }
    return Result("p", "d", 0.0, ids, meta=meta)


def report(expected: Result, got: Result, copies: int = 1) -> EqualityReport:
    made = EqualityReport()
    made.add("batched, cold", [expected] * copies, [got] * copies)
    return made


def test_equal_outputs() -> None:
    made = report(plain([1, 2, 3]), drafted([1, 2, 3]))
    assert made.verdict == "equal"
    assert not made.differences


@pytest.mark.known_case(23)
def test_no_draft_is_inconclusive_even_if_all_is_equal() -> None:
    assert report(plain([1, 2, 3]), drafted([1, 2, 3], drafts=0)).verdict == "inconclusive"
    assert EqualityReport().verdict == "inconclusive"


def test_a_difference_is_located() -> None:
    difference = first_difference("m", plain([1, 2, 3]), drafted([1, 99, 7]))
    assert difference is not None
    assert (difference.position, difference.expected, difference.got) == (1, 2, 99)
    assert difference.gap == 2.0
    assert not difference.tie
    assert report(plain([1, 2, 3]), drafted([1, 99, 7])).verdict == "different"


def test_a_near_tie_is_counted_apart() -> None:
    made = report(plain([1, 2, 3], runner_up=-1.0009), drafted([1, 99, 7]))
    assert made.verdict == "equal"
    assert len(made.ties) == 1
    assert made.as_json()["ties"] == 1
    assert made.as_json()["differences"][0]["tie"]
    assert report(plain([1, 2, 3], runner_up=-1.0011), drafted([1, 99, 7])).verdict == "different"


def test_many_ties_are_not_an_excuse() -> None:
    made = EqualityReport()
    tied = plain([1], runner_up=-1.0)
    made.add("m", [tied] * 200, [drafted([1])] * 198 + [drafted([99])] * 2)
    assert made.verdict == "equal"
    made.add("m", [tied], [drafted([99])])
    assert made.verdict == "different"


def test_tokens_the_plain_engine_did_not_consider_and_early_ends_are_no_ties() -> None:
    unknown = first_difference("m", plain([1, 2], runner_up=-1.0), drafted([1, 5]))
    ended = first_difference("m", plain([1, 2], runner_up=-1.0), drafted([1]))
    assert unknown is not None
    assert unknown.gap is None
    assert not unknown.tie
    assert ended is not None
    assert (ended.position, ended.got) == (1, None)
    assert not ended.tie


def test_failed_requests_stop_the_check() -> None:
    failed = Result("p", "d", 0.0, error="boom")
    with pytest.raises(EqualityError, match="request p failed: boom"):
        report(plain([1]), failed)


def test_all_four_ways_are_compared(engine: FakeEngine) -> None:
    prompts = [Prompt(f"p{i}", "math", "hello" + "!" * i) for i in range(3)]
    requests = greedy_requests(prompts, FakeTokenizer(), max_new_tokens=6)
    reference = run_load(engine.base_url, requests, 1).results
    answered: list[Result] = []
    made = check_equality(engine.base_url, requests, reference, batch=3, on_result=answered.append)
    assert made.verdict == "equal"
    assert made.compared == len(answered) == 12
    assert made.output_tokens == 72
    assert all(body["sampling_params"]["temperature"] == 0.0 for body in engine.bodies)
