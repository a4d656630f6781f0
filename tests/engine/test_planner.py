"""Verify lengths stay within what a request may still emit and what its draft left, whatever the policy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sglang_dspark.config import DSparkConfig
from sglang_dspark.engine.planner import Planner
from sglang_dspark.engine.rounds import Round
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.schedule.adaptive import Adaptive
from sglang_dspark.schedule.cost import CostModel, Curve, Surface
from sglang_dspark.schedule.guard import Guard
from sglang_dspark.schedule.sweep import points

GAMMA = 4
SURFACE = Surface(0.02, Curve((1, 8), (0.01, 0.02)), Curve((1, 8, 64), (0.0, 0.002, 0.08)))


def request(limit: int | None, emitted: int, finished: bool = False) -> SimpleNamespace:
    params = SimpleNamespace(max_new_tokens=limit, temperature=1.0, top_k=1, sampling_seed=None)
    return SimpleNamespace(sampling_params=params, output_ids=[7] * emitted, finished=lambda: finished, rid=object())


def block(usable: list[int], confidence: float | None = 0.99) -> DraftBlock:
    values = None if confidence is None else torch.full((len(usable), GAMMA), confidence)
    return DraftBlock(torch.zeros(len(usable), GAMMA, dtype=torch.int64), None, values, torch.tensor(usable))


@pytest.mark.known_case(6)
@pytest.mark.parametrize("policy", ["fixed", "threshold"])
def test_lengths_respect_every_limit(policy: str) -> None:
    planner = Planner(DSparkConfig(policy=policy), GAMMA, has_confidence=True)
    requests = [request(None, 50), request(10, 7), request(10, 9), request(10, 10), request(9, 1, finished=True)]
    assert planner.lengths(planner.begin(requests, 100), block([4, 4, 4, 4, 4])) == [4, 2, 0, 0, 0]
    assert planner.lengths(planner.begin(requests, 100), block([0, 1, 4, 4, 4])) == [0, 1, 0, 0, 0]
    assert planner.lengths(planner.begin([], 0), block([])) == []


def test_the_threshold_reads_confidences_and_the_usable_prefix_exactly() -> None:
    planner = Planner(DSparkConfig(policy="threshold", survival_threshold=0.5), GAMMA, has_confidence=True)
    drawn = block([4, 3, 4])
    drawn.confidence[0] = torch.tensor([0.9, 0.8, 0.6, 0.9])
    drawn.confidence[2] = torch.tensor([0.5, 1.0, 1.0, 0.4999])
    assert planner.lengths(planner.begin([request(None, 1)] * 3, 30), drawn) == [2, 3, 3]


@pytest.mark.known_case(20)
@pytest.mark.parametrize("length", [None, 0, 2])
def test_a_skipped_draft_schedules_nothing(length: int | None) -> None:
    planner = Planner(DSparkConfig(policy="fixed", verify_length=length), GAMMA, has_confidence=False)
    plan = planner.begin([request(None, 1), request(30, 1)], 20)
    assert planner.lengths(plan, DraftBlock.skipped(2, GAMMA, "cpu")) == [0, 0]
    assert plan.drafts is (length != 0)


@pytest.mark.known_case(3)
def test_a_sweep_verifies_what_it_asks_for_or_claims_nothing() -> None:
    planner = Planner(DSparkConfig(policy="sweep"), GAMMA, has_confidence=True)
    asked = set()
    for _ in range(2 * len(points(3, GAMMA))):
        plan = planner.begin([request(None, 1)] * 3, 30)
        drawn = block([4, 4, 4]) if plan.drafts else DraftBlock.skipped(3, GAMMA, "cpu")
        lengths = planner.lengths(plan, drawn)
        assert plan.requested == 3 + sum(lengths) == plan.tokens
        asked.add((plan.drafts, tuple(lengths)))
    assert len(asked) == len(points(3, GAMMA))
    ending = [planner.begin([request(3, 1)] * 3, 30) for _ in range(len(points(3, GAMMA)))]
    for plan in ending:
        planner.lengths(plan, block([4, 4, 4]))
        assert plan.requested in (None, plan.tokens)
    assert any(plan.requested is None for plan in ending)


def test_the_kv_pool_limits_what_is_drafted_and_gives_way_later() -> None:
    planner = Planner(DSparkConfig(policy="fixed"), GAMMA, has_confidence=True)
    requests = [request(None, 1)] * 2

    def verified(free: float) -> list[int]:
        plan = planner.begin(requests, 20, free)
        return planner.lengths(plan, block([4, 4]) if plan.drafts else DraftBlock.skipped(2, GAMMA, "cpu"))

    assert verified(0.5) == [4, 4]
    assert verified(0.05) == [1, 1]
    assert verified(0.02) == [0, 0]
    assert [verified(0.08) for _ in range(20)][-1] == [0, 0]
    assert [verified(0.5) for _ in range(40)][-1] == [1, 1]
    assert [verified(0.5) for _ in range(40)][-1] == [4, 4]


@pytest.mark.known_case(5)
@pytest.mark.parametrize("seed", range(20))
def test_ranks_with_different_confidences_take_the_first_one_s_decision(seed: int) -> None:
    """Confidences differ in the third digit, with ties, and each rank measures times of its own."""
    random = np.random.default_rng(seed)
    first: list[npt.NDArray[np.int64]] = []
    told: list[npt.NDArray[np.int64]] = []

    def say(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        first.append(values)
        return values

    def hear(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        assert values.shape == first[len(told)].shape
        told.append(values)
        return first[len(told) - 1]

    def rank(agree: Callable[..., npt.NDArray[np.int64]]) -> Planner:
        guard = Guard(GAMMA)
        adaptive = Adaptive(CostModel(SURFACE), GAMMA, guard, "causal", explore=0.1, seed=3, agree=agree)
        return Planner(DSparkConfig(), GAMMA, True, adaptive, agree=agree)

    leader, follower = rank(say), rank(hear)
    requests = [request(None, 1) for _ in range(6)]
    for _ in range(60):
        shared = np.round(random.uniform(0.3, 1.0, (6, GAMMA)), 1)
        lengths = []
        for planner in (leader, follower):
            plan = planner.begin(requests, 600)
            drawn = block([GAMMA] * 6) if plan.drafts else DraftBlock.skipped(6, GAMMA, "cpu")
            if plan.drafts:
                drawn.confidence[:] = torch.from_numpy(shared + random.uniform(-0.001, 0.001, shared.shape))
            lengths.append((plan.drafts, plan.mode, planner.lengths(plan, drawn)))
            plan.came_out(torch.ones(6, dtype=torch.int32))
            plan.started -= random.uniform(0.01, 0.2)
        assert lengths[0] == lengths[1]
    assert any((a != b).any() for a, b in zip(first, told, strict=True)), "no rank ever wanted something else"


def test_a_round_is_timed_only_when_the_same_requests_decode_on() -> None:
    done: list[Round] = []
    planner = Planner(DSparkConfig(policy="fixed"), GAMMA, has_confidence=True)
    planner._came_out = done.append  # type: ignore[method-assign]
    first, second = [request(None, 1)] * 2, [request(None, 1)]

    def run(reqs: list[SimpleNamespace]) -> None:
        plan = planner.begin(reqs, 20)
        planner.lengths(plan, block([4] * len(reqs)))
        plan.came_out(torch.ones(len(reqs), dtype=torch.int32))

    run(first), run(first), run(second)
    planner.interrupt()
    run(second), run(second)
    assert [r.seconds is not None for r in done] == [True, False, False, True]
    assert all(r.accepted().tolist() == [0] * len(r.requests) for r in done)
