"""The adaptive policy against every fixed length, in a small simulation of serving with costs right and wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sglang_dspark.schedule.adaptive import Adaptive, Scheduler
from sglang_dspark.schedule.guard import Guard
from sglang_dspark.schedule.survival import FloatArray, IntArray, survival

GAMMA = 5


@dataclass
class Cost:
    """Seconds of a round: a base, the draft, and a price for every token past `knee`, in steps."""

    base: float = 0.02
    per_request: float = 0.0005
    per_token: float = 0.002
    draft: float = 0.006
    draft_per_request: float = 0.002
    knee: int = 0
    step: int = 1

    def _verify(self, requests: int, tokens: FloatArray | float) -> FloatArray:
        stepped = np.ceil(np.asarray(tokens, dtype=np.float64) / self.step) * self.step
        return self.base + self.per_request * requests + self.per_token * np.maximum(0, stepped - self.knee)

    def round_seconds(self, requests: int, context: int, gamma: int) -> FloatArray:
        drafting = self.draft + self.draft_per_request * requests
        return self._verify(requests, np.arange(requests * (1 + gamma) + 1)) + drafting

    def undrafted_seconds(self, requests: int, context: int) -> float:
        return float(self._verify(requests, requests))


@dataclass
class Wrong:
    """`cost` as a bad table has it: `bend(seconds, drafted)`."""

    cost: Cost
    drafted: float = 1.0
    undrafted: float = 1.0
    noise: float = 0.0

    def round_seconds(self, requests: int, context: int, gamma: int) -> FloatArray:
        true = self.cost.round_seconds(requests, context, gamma)
        rough = np.exp(self.noise * np.random.default_rng(5).standard_normal(len(true)))
        return np.maximum.accumulate(true * self.drafted * rough)

    def undrafted_seconds(self, requests: int, context: int) -> float:
        return self.cost.undrafted_seconds(requests, context) * self.undrafted


class World:
    """Draws confidences that differ from round to round, and acceptance that follows them."""

    def __init__(self, cost: Cost, quality: float, seed: int = 0) -> None:
        self.cost, self.quality = cost, quality
        self.random = np.random.default_rng(seed)

    def confidence(self, requests: int) -> FloatArray:
        ease = self.random.beta(4 * self.quality, 4 * (1 - self.quality), size=(requests, 1))
        return np.clip(ease + 0.1 * self.random.standard_normal((requests, GAMMA)), 0.01, 0.99)

    def accepted(self, confidence: FloatArray, lengths: IntArray) -> IntArray:
        hit = self.random.random(confidence.shape) < confidence
        hit &= np.arange(GAMMA) < lengths[:, None]
        return np.logical_and.accumulate(hit, axis=1).sum(axis=1)

    def seconds(self, requests: int, lengths: IntArray, drafted: bool) -> float:
        total = requests + int(lengths.sum())
        true = (
            self.cost.round_seconds(requests, 0, GAMMA)[total] if drafted else self.cost.undrafted_seconds(requests, 0)
        )
        return float(true * np.exp(0.02 * self.random.standard_normal()))


def fixed_rate(world: World, requests: int, length: int) -> float:
    """Expected tokens a second of a fixed length."""
    a = survival(world.confidence(10_000))
    seconds = world.cost.round_seconds(requests, 0, GAMMA)[requests * (1 + length)]
    if length == 0:
        seconds = world.cost.undrafted_seconds(requests, 0)
    return float(requests * (1 + a[:, :length].sum(axis=1).mean()) / seconds)


def adaptive_rate(world: World, policy: Adaptive, requests: int, rounds: int, warm: int) -> float:
    names = list(range(requests))
    tokens = seconds = 0.0
    for number in range(rounds):
        decision = policy.before(names, 100 * requests)
        drafted = decision.mode > 0
        c = world.confidence(requests)
        lengths = np.zeros(requests, dtype=np.int64)
        if drafted:
            lengths = policy.lengths(decision, c.astype(np.float32), np.full(requests, GAMMA, dtype=np.int64))
        accepted, took = world.accepted(c, lengths), world.seconds(requests, lengths, drafted)
        policy.after(names, decision, c.astype(np.float32) if drafted else None, lengths, accepted, took)
        if number >= warm:
            # Expected, not drawn: what the policy chose is judged, not its luck.
            verified = np.arange(GAMMA) < lengths[:, None]
            tokens, seconds = tokens + requests + float((survival(c) * verified).sum()), seconds + took
    return float(tokens / seconds)


COSTS = {
    "saturates early": Cost(),
    "memory-bound": Cost(per_token=0.0001, per_request=0.0001, draft_per_request=0.0001),
    "bound at 64 tokens": Cost(per_token=0.001, per_request=0.0, draft_per_request=0.0001, knee=64),
    "steps of 16": Cost(per_token=0.0008, draft_per_request=0.0002, step=16),
}


@pytest.mark.parametrize("scheduler", ["causal", "lagged"])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.known_case(22)
def test_not_behind_any_fixed_length(cost: str, scheduler: Scheduler) -> None:
    for requests, quality in ((1, 0.4), (6, 0.6), (32, 0.75)):
        world = World(COSTS[cost], quality)
        best = max(fixed_rate(world, requests, length) for length in range(GAMMA + 1))
        policy = Adaptive(COSTS[cost], GAMMA, Guard(GAMMA), scheduler)
        rounds = 1000 if requests > 1 else 3000
        rate = adaptive_rate(world, policy, requests, rounds, warm=200)
        # One request's confidences are few: modes within 6 % of each other are not told apart for long.
        least = 0.98 if requests > 1 else 0.95
        assert rate > least * best, (
            f"{requests} requests, quality {quality}: {rate / best:.3f} of the best fixed length"
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"drafted": 3.0, "undrafted": 3.0}, {"drafted": 3.0}, {"undrafted": 3.0}, {"drafted": 1 / 3}, {"noise": 0.3},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_table_is_found_out(wrong: dict[str, float]) -> None:
    for requests, quality in ((2, 0.75), (24, 0.5)):
        cost = COSTS["saturates early"]
        world = World(cost, quality)
        best = max(fixed_rate(world, requests, length) for length in range(GAMMA + 1))
        policy = Adaptive(Wrong(cost, **wrong), GAMMA, Guard(GAMMA), "causal")
        rate = adaptive_rate(world, policy, requests, rounds=1200, warm=400)
        assert rate > 0.96 * best, f"{requests} requests: {rate / best:.3f} of the best fixed length"


def test_no_drafting_is_not_absorbing() -> None:
    cost = COSTS["saturates early"]
    policy = Adaptive(cost, GAMMA, Guard(GAMMA), "causal")
    poor, good = World(cost, 0.1, seed=1), World(cost, 0.9, seed=2)
    adaptive_rate(poor, policy, 4, rounds=400, warm=0)
    assert policy.before(range(4), 400).mode == 0
    best = max(fixed_rate(good, 4, length) for length in range(GAMMA + 1))
    assert best > 1.1 * fixed_rate(good, 4, 0), "the world must be one where drafting pays"
    assert adaptive_rate(good, policy, 4, rounds=2500, warm=1200) > 0.96 * best


def test_explored_rounds_verify_everything_and_are_drawn_beforehand() -> None:
    policy = Adaptive(COSTS["bound at 64 tokens"], GAMMA, Guard(GAMMA), "causal", explore=0.25)
    limits = np.full(40, GAMMA, dtype=np.int64)
    explored = 0
    for _ in range(400):
        decision = policy.before(range(40), 4000)
        assert decision.explored.all() == decision.explored.any()
        if decision.explored.any():
            explored += 1
            for c in (np.zeros((40, GAMMA), np.float32), np.full((40, GAMMA), 0.9, np.float32)):
                assert (policy.lengths(decision, c, limits) == GAMMA).all()
    assert 60 < explored < 140


def test_a_fuse_bounds_the_mode() -> None:
    policy = Adaptive(COSTS["memory-bound"], GAMMA, Guard(GAMMA), "causal")
    assert policy.before([1], 100).mode > 1
    assert policy.before([1], 100, most=1).mode <= 1
    assert policy.before([1], 100, most=0).mode == 0


def test_an_slo_is_kept_when_some_mode_keeps_it_and_said_when_none_does() -> None:
    cost = Cost(per_token=0.004, draft=0.001, draft_per_request=0.0)
    kept = Guard(GAMMA, objective="slo", slo=17.0)
    Adaptive(cost, GAMMA, kept, "causal").before(range(8), 800)
    assert kept.slo_met
    missed = Guard(GAMMA, objective="slo", slo=1e4)
    Adaptive(cost, GAMMA, missed, "causal").before(range(8), 800)
    assert not missed.slo_met
