"""Every serving policy leaves the target's distribution exactly as it is: total variation 0 in rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from exact_prover import serving
from exact_prover.enumeration import Policy, Proof, prove
from exact_prover.worlds import random_world

Report = Callable[[str, str, Sequence[Proof], bool], None]

# Seconds of a round by drafted tokens verified, with the steps that captured graph sizes make.
ROUND_SECONDS = (1.0, 1.1, 1.35, 1.38, 1.41, 1.8, 1.83, 1.86, 2.3, 2.33, 2.36, 2.8, 2.83)


def seconds(requests: int) -> tuple[float, ...]:
    """The cost curve by verified tokens, the anchors included."""
    return (0.0,) * requests + ROUND_SECONDS


# gamma, requests -> policy
POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "fixed": lambda g, r: serving.fixed(g - 1),
    "threshold": lambda g, r: serving.threshold(0.45),
    "scan": lambda g, r: serving.causal_scan(seconds(r)),
    "scan, compiled": lambda g, r: serving.causal_scan_compiled(seconds(r)),
    "look-ahead": lambda g, r: serving.look_ahead(seconds(r), g),
    "lagged": lambda g, r: serving.lagged(seconds(r), age=1, first=1),
    "lagged, compiled": lambda g, r: serving.lagged_compiled(seconds(r), first=1),
    "lagged two rounds": lambda g, r: serving.lagged(seconds(r), age=2, first=2),
    "mode changes": lambda g, r: serving.changing_modes(seconds(r), g),
    "exploration": lambda g, r: serving.exploring(serving.lagged(seconds(r)), g),
}


@dataclass(frozen=True)
class Setting:
    name: str
    policy: str
    rounds: int
    world: dict[str, Any] = field(default_factory=dict)
    coupled: bool = True
    limited: bool = True
    seeds: int = 3

    def __str__(self) -> str:
        sizes = " ".join(f"{k[0].upper()}={self.world[k]}" for k in ("vocab", "gamma", "requests") if k in self.world)
        cut = "coupled" if self.coupled else "fresh"
        return f"{self.name}: {self.policy}, {cut} cut, {sizes}, {self.rounds} rounds"


TWO = {"vocab": 2, "gamma": 2, "requests": 2, "length": 3}
ONE = {"vocab": 3, "gamma": 2, "length": 4}
DEEP = {"vocab": 2, "gamma": 3, "length": 6}

SHORT = [
    *(Setting("two requests", policy, 2, TWO, coupled) for policy in POLICIES for coupled in (True, False)),
    *(Setting("one request", policy, 3, ONE, coupled) for policy in POLICIES for coupled in (True, False)),
    *(Setting("four rounds", policy, 4, DEEP) for policy in POLICIES),
    *(Setting("sparse q", policy, 2, {**ONE, "support": 2}) for policy in ("scan", "lagged")),
    *(Setting("sparse q, one candidate", policy, 2, {**ONE, "support": 1}) for policy in ("scan", "lagged")),
    *(Setting("filtered p and q", policy, 2, {**ONE, "filtered": True}) for policy in ("scan", "lagged")),
    *(Setting("pair confidence", policy, 2, {**TWO, "pair": True}) for policy in POLICIES),
    *(Setting("NaN confidences", policy, 2, {**TWO, "nan": True}) for policy in ("threshold", "scan", "lagged")),
    *(
        Setting("unusable positions", policy, 3, {**ONE, "broken": True, "nan": True}, coupled)
        for policy in ("threshold", "scan", "lagged")
        for coupled in (True, False)
    ),
    *(Setting("end of sequence", policy, 3, {**ONE, "end": 2}) for policy in POLICIES),
    *(Setting("temperature 0", policy, 3, {**DEEP, "greedy": True}) for policy in POLICIES),
    *(
        Setting("limits a round late", policy, 2, ONE, limited=False)
        for policy in ("fixed", "scan", "lagged two rounds")
    ),
]

V4 = {"vocab": 4, "gamma": 3, "length": 4}
G4 = {"vocab": 3, "gamma": 4, "length": 5}
R3 = {"vocab": 2, "gamma": 3, "requests": 3, "length": 3}
LONG = [
    *(Setting("largest V", policy, 3, V4, seeds=1) for policy in POLICIES),
    *(Setting("largest V, longer", policy, 3, {**V4, "length": 5}, seeds=1) for policy in ("scan", "lagged")),
    Setting("largest V and γ", "scan", 2, {"vocab": 4, "gamma": 4, "length": 5}, seeds=1),
    *(Setting("largest γ", policy, 3, G4, seeds=1) for policy in POLICIES),
    *(Setting("largest γ", policy, 3, G4, coupled=False, seeds=1) for policy in ("scan", "lagged", "threshold")),
    *(Setting("largest γ, pair confidence", policy, 2, {**G4, "pair": True}, seeds=1) for policy in ("scan", "lagged")),
    *(Setting("largest R", policy, 2, R3, seeds=1) for policy in POLICIES),
    *(
        Setting("largest R, three tokens", policy, 2, {**R3, "vocab": 3, "gamma": 2, "length": 2})
        for policy in ("threshold", "scan", "look-ahead", "lagged")
    ),
    *(
        Setting("three rounds of two requests", policy, 3, {**R3, "gamma": 4, "requests": 2, "length": 5}, seeds=1)
        for policy in ("scan", "look-ahead", "lagged", "lagged two rounds", "mode changes")
    ),
    *(
        Setting("eight rounds", policy, 8, {"vocab": 2, "gamma": 4, "length": 9}, seeds=1)
        for policy in ("scan", "lagged two rounds", "mode changes")
    ),
]


def check(setting: Setting, report: Report) -> None:
    proofs = []
    for seed in range(setting.seeds):
        world = random_world(seed, **setting.world)
        policy = POLICIES[setting.policy](world.gamma, world.requests)
        proofs.append(prove(world, policy, rounds=setting.rounds, coupled=setting.coupled, limited=setting.limited))
    passed = all(proof.total_variation == 0 for proof in proofs)
    report("lossless", str(setting), proofs, passed)
    assert passed, [str(proof.total_variation) for proof in proofs]
    assert all(sum(proof.law.values()) == 1 and proof.leaves <= 2_000_000 for proof in proofs)
    # Nothing verified, or always the same, would prove nothing.
    plans = {plan for proof in proofs for plan in proof.plans}
    assert any(any(plan) for plan in plans)
    assert len(plans) > 1 or setting.policy == "fixed"


@pytest.mark.parametrize("setting", SHORT, ids=str)
def test_short(setting: Setting, report: Report) -> None:
    check(setting, report)


@pytest.mark.exact
@pytest.mark.parametrize("setting", LONG, ids=str)
def test_long(setting: Setting, report: Report) -> None:
    check(setting, report)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_batch(policy: str) -> None:
    """R = 0 is legal: no text, with certainty."""
    world = random_world(0, vocab=2, gamma=2, requests=0, length=2)
    assert prove(world, POLICIES[policy](2, 0), rounds=2).law == {(): 1}
