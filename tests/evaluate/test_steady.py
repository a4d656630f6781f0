from __future__ import annotations

import pytest
from evaluation_fakes import FakeEngine

from sglang_dspark.evaluate.load import Request, Result
from sglang_dspark.evaluate.steady import SteadyRun, steady_load


def make(count: int) -> list[Request]:
    return [Request(f"r{i}", "math", [i, 100 * i], {"temperature": 0, "max_new_tokens": 9}) for i in range(count)]


def test_users_are_busy_all_the_time_and_what_arrives_is_counted(engine: FakeEngine) -> None:
    engine.delay, engine.piece = 0.01, 1
    run = steady_load(engine.base_url, make(5), users=3, seconds=0.6)
    assert not run.failed
    assert engine.most_in_flight == 3
    assert 0.55 < run.end - run.begin < 1.0
    # A token every delay and user, less what asking anew takes.
    assert 0.3 * 3 / 0.01 < run.tokens_per_second <= 3 / 0.01
    limits = [body["sampling_params"]["max_new_tokens"] for body in engine.bodies]
    assert sorted(limits[:3]) == [2, 4, 7]
    assert set(limits[3:]) == {9}


def test_tokens_before_and_after_are_not_counted() -> None:
    result = Result("r", "math", sent_at=10.0, arrivals=[(0.5, 1), (1.5, 4), (2.5, 6), (9.0, 9)])
    assert SteadyRun([result], begin=11.0, end=13.0, failed=[]).tokens_per_second == (6 - 1) / 2


def test_a_server_that_refuses_ends_the_run(engine: FakeEngine) -> None:
    engine.delay, engine.refused = 0.01, {1}
    run = steady_load(engine.base_url, make(3), users=3, seconds=60.0)
    assert [result.id for result in run.failed] == ["r1"]


def test_fewer_requests_than_users(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="2 requests for 3 users"):
        steady_load(engine.base_url, make(2), users=3, seconds=1.0)


def test_a_user_who_gets_nothing_is_noticed(engine: FakeEngine) -> None:
    engine.delay = 0.01
    run = steady_load(engine.base_url, make(3), users=3, seconds=0.3)
    assert run.silent_seconds < 0.2
    engine.delay = 5.0
    run = steady_load(engine.base_url, make(3), users=3, seconds=0.3, request_seconds=0.5)
    assert {result.error for result in run.failed} == {"no complete answer within 0.5 s"}
