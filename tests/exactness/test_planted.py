"""Planted errors: the prover must find each, with the known probability where one is known.

In these worlds p = (0.7, 0.3) and q = (0.5, 0.5). A rule that verifies only when the token drawn was A emits A with
probability 0.5 · 1 + 0.5 · 0.7 = 0.85 instead of 0.7; one that verifies only when it was B, with 0.5 · 0.7 + 0.5 · 0.4
= 0.55. Behind a position that has to be accepted first (probability 0.8), 0.85 becomes 0.8 · 0.85 + 0.2 · 0.7 = 0.82.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exact_prover import classic, planted, serving
from exact_prover.classic import CLIFF, CLIFF_OF_FOUR, CLIFF_OF_THREE, A
from exact_prover.enumeration import Policy, Proof, independent, prove
from exact_prover.worlds import Row, Tokens, World, random_world, row

Report = Callable[[str, str, Sequence[Proof], bool], None]
Found = Callable[[str, Proof], None]


@pytest.fixture
def found(report: Report) -> Found:
    def check(name: str, proof: Proof) -> None:
        report("planted", name, [proof], proof.total_variation > 0)
        assert proof.total_variation > 0

    return check


def argmax(seconds: tuple[float, ...]) -> Policy:
    return Policy("unconstrained argmax", lambda memory, c, limits: planted.unconstrained_argmax(c, seconds, limits))


def peeking(seconds: tuple[float, ...], further: int) -> Policy:
    return Policy("peeking scan", lambda memory, c, limits: planted.peeking_scan(c, seconds, limits, further))


def whole_plans(seconds: tuple[float, ...]) -> Policy:
    return Policy("whole plans", lambda memory, c, limits: planted.best_whole_plan(c, seconds, limits))


def whole_row(minimum: float) -> Policy:
    return Policy("whole-row fallback", lambda memory, c, limits: planted.whole_row_fallback(c, minimum, limits))


@pytest.mark.known_case(1)
def test_argmax_of_this_round_with_a_fresh_cut(found: Found) -> None:
    proof = prove(classic.appendix(), argmax(CLIFF), rounds=1, coupled=False)
    found("unconstrained argmax, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.85")
    assert proof.total_variation == Fraction("0.15")


def test_argmax_of_this_round_with_the_coupled_cut(found: Found) -> None:
    """The cut tests one token more, so the bias moves one position on: γ = 3 is needed."""
    assert prove(classic.appendix(), argmax(CLIFF), rounds=1).total_variation == 0
    proof = prove(classic.appendix_of_three(), argmax(CLIFF_OF_THREE), rounds=1)
    found("unconstrained argmax, coupled cut, γ = 3", proof)
    assert proof.probability(0, 1, A) == Fraction("0.82")
    assert proof.total_variation == Fraction("0.12")


def test_argmax_is_found_in_random_worlds(found: Found) -> None:
    """The worlds the serving policies are proved in are worlds in which an error shows."""
    seconds = (0.0, 1.0, 2.0, 3.0, 3.01)
    worlds = [random_world(seed, vocab=3, gamma=3, length=4) for seed in range(12)]
    proofs = [prove(world, argmax(seconds), rounds=1) for world in worlds]
    biased = [proof for proof in proofs if proof.total_variation > 0]
    assert len(biased) >= 4
    found("unconstrained argmax, coupled cut, a random world", max(biased, key=lambda proof: proof.total_variation))
    assert all(prove(world, serving.causal_scan(seconds), rounds=1).total_variation == 0 for world in worlds)


def test_at_temperature_zero_any_schedule_is_lossless() -> None:
    for seed in range(5):
        world = random_world(seed, vocab=3, gamma=3, length=6, greedy=True)
        assert prove(world, argmax((0.0, 1.0, 1.9, 2.6, 2.7)), rounds=2).total_variation == 0


def test_pair_confidence_with_a_fresh_cut(found: Found) -> None:
    world = classic.world(1, classic.reveals(1), pair=True)
    proof = prove(world, serving.threshold(0.5), rounds=1, coupled=False)
    found("pair confidence, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.85")
    assert prove(world, serving.threshold(0.5), rounds=1).total_variation == 0


def test_a_scan_that_peeks_further_than_its_cut_allows(found: Found) -> None:
    """The coupled cut can take one candidate more, the fresh one cannot; with a pair confidence neither can."""
    proof = prove(classic.appendix(), peeking(CLIFF, 1), rounds=1, coupled=False)
    found("scan peeking 1 further, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.85")

    assert prove(classic.appendix(), peeking(CLIFF, 1), rounds=1).total_variation == 0
    assert prove(classic.appendix_of_three(), peeking(CLIFF_OF_THREE, 1), rounds=1).total_variation == 0
    proof = prove(classic.appendix_of_three(), peeking(CLIFF_OF_THREE, 2), rounds=1)
    found("scan peeking 2 further, coupled cut, γ = 3", proof)
    assert proof.probability(0, 1, A) == Fraction("0.82")

    pair = classic.world(2, classic.reveals(2), pair=True)
    found("scan peeking 1 further, pair confidence, coupled cut", prove(pair, peeking(CLIFF, 1), rounds=1))
    assert prove(pair, peeking(CLIFF, 0), rounds=1).total_variation == 0


def test_whole_plans_compared_under_this_rounds_confidences(found: Found) -> None:
    proof = prove(classic.appendix(), whole_plans(CLIFF), rounds=1, coupled=False)
    found("whole plans, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.85")
    proof = prove(classic.appendix_of_three(), whole_plans(CLIFF_OF_THREE), rounds=1)
    found("whole plans, coupled cut, γ = 3", proof)
    assert proof.probability(0, 1, A) == Fraction("0.82")


def test_falling_back_for_the_whole_row_at_a_nan(found: Found) -> None:
    two = classic.world(2, classic.not_a_number(1))
    proof = prove(two, whole_row(0.1), rounds=1, coupled=False)
    found("whole-row NaN fallback, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.85")
    three = classic.world(3, classic.not_a_number(2))
    proof = prove(three, whole_row(0.1), rounds=1)
    found("whole-row NaN fallback, coupled cut, γ = 3", proof)
    assert proof.probability(0, 1, A) == Fraction("0.82")
    # Ending the row's candidates at the NaN is what serving does.
    for world in (two, three):
        for coupled in (True, False):
            assert prove(world, serving.threshold(0.1), rounds=1, coupled=coupled).total_variation == 0


def test_dropping_a_drawn_token_for_what_it_is(found: Found) -> None:
    """A token thrown away, and a fresh draw in place of the residual: either cut is biased."""
    world = classic.world(1, classic.reveals(1), dropped=lambda request, emitted, drafted: drafted[-1] != A)
    for coupled, cut in ((True, "coupled"), (False, "fresh")):
        proof = prove(world, serving.fixed(1), rounds=1, coupled=coupled)
        found(f"dropped token, {cut} cut", proof)
        assert proof.probability(0, 0, A) == Fraction("0.85")


def test_noise_keyed_by_absolute_position(found: Found) -> None:
    """The first round verifies nothing and shows the budget what a redrafted position will draw."""
    three = classic.world(3, classic.reveals(2), length=5)
    keyed = planted.keyed_by_position(2)
    proof = prove(three, serving.lagged(CLIFF_OF_THREE), rounds=2, coupled=False, drafting=keyed)
    found("noise keyed by position, lagged budget, fresh cut", proof)
    assert proof.probability(0, 1, A) == Fraction("0.85")
    four = classic.world(4, classic.reveals(3), length=6)
    proof = prove(four, serving.lagged(CLIFF_OF_FOUR), rounds=2, drafting=keyed)
    found("noise keyed by position, lagged budget, coupled cut, γ = 4", proof)
    assert proof.probability(0, 2, A) == Fraction("0.82")
    assert prove(three, serving.lagged(CLIFF_OF_THREE), rounds=2, coupled=False).total_variation == 0
    assert prove(four, serving.lagged(CLIFF_OF_FOUR), rounds=2).total_variation == 0


def rival(request: int, emitted: Tokens, seen: Tokens) -> float:
    """Request 1 outbids request 0 for the second of two places exactly when its own first token was A."""
    if request == 0:
        return 0.0 if seen else 0.5
    return 0.9 if not seen or seen[0] == A else 0.0


def test_a_uniform_shared_by_two_requests(found: Found) -> None:
    """Request 0 is verified exactly when the other drew B, and then it drew B itself."""
    world = classic.world(2, rival, requests=2)
    shared = planted.shared_between_requests(2)
    proof = prove(world, serving.top_k(2), rounds=1, coupled=False, drafting=shared)
    found("uniform shared by two requests, fresh cut", proof)
    assert proof.probability(0, 0, A) == Fraction("0.55")
    # The coupled cut repairs each text alone, not the two together.
    proof = prove(world, serving.top_k(2), rounds=1, drafting=shared)
    found("uniform shared by two requests, coupled cut", proof)
    assert proof.request_variation(0) == proof.request_variation(1) == 0
    for coupled in (True, False):
        assert prove(world, serving.top_k(2), rounds=1, coupled=coupled).total_variation == 0


def test_plans_that_cross(found: Found) -> None:
    """Each request's admission depends on the other's tokens only: each text is right, the two together are not."""
    world = classic.world(2, classic.reveals(1), requests=2)
    policy = Policy("crossed", lambda memory, c, limits: planted.crossed(c, limits))
    proof = prove(world, policy, rounds=1, coupled=False)
    found("plans that cross, fresh cut", proof)
    assert proof.request_variation(0) == proof.request_variation(1) == 0
    both = sum(w for (first, second), w in proof.law.items() if first[0] == second[0] == A)
    assert both == Fraction("0.5125") > Fraction("0.49")


def bfloat16(value: float) -> float:
    bits = np.float32(value).view(np.uint32).item()
    return float(np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32))


def softmax(logits: Sequence[float]) -> Row:
    return row(*(Fraction(math.exp(x)) for x in logits))


@pytest.mark.known_case(15)
def test_q_rebuilt_from_rounded_logits(found: Found) -> None:
    logits = (3.014, 2.297, -1.553)
    target = row(5, 3, 2)
    world = World(3, 2, 1, 3, lambda r, e: target, lambda r, e, d: softmax(logits), lambda r, e, seen: 0.9)
    assert prove(world, serving.fixed(2), rounds=1).total_variation == 0
    rebuilt = softmax([bfloat16(x) for x in logits])
    proof = prove(replace(world, claimed=lambda r, e, d: rebuilt), serving.fixed(2), rounds=1)
    found("q rebuilt from logits rounded to bfloat16", proof)
    assert Fraction(1, 10_000) < proof.total_variation < Fraction(1, 10)


def counted(survivals: Callable[..., np.ndarray], budget: int) -> Policy:
    return Policy("counted top-K", lambda memory, c, limits: planted.counted_top_k(survivals(c), budget, limits))


def test_survival_that_rises(found: Found) -> None:
    """Survivals calibrated position by position need not fall: a late one takes an early one's place."""

    def confidence(request: int, emitted: Tokens, seen: Tokens) -> float:
        if request == 1:
            return 0.0 if seen else 0.6
        return 0.5 if len(seen) < 2 else (0.9 if seen[1] == A else 0.1)

    world = classic.world(3, confidence, requests=2)
    proof = prove(world, counted(lambda c: c, 1), rounds=1)
    found("rising survival, coupled cut, γ = 3", proof)
    assert proof.probability(0, 1, A) == Fraction("0.82")


def test_survival_that_rises_in_the_last_bit(found: Found) -> None:
    """A parallel prefix product in float32: `(c1 c2)(c3 c4)` with c4 = 1 may exceed `c1 (c2 c3)`, and a tie follows."""
    first = rising_in_the_last_bit()
    third = planted.tree_survival(first)[0, 2]

    def confidence(request: int, emitted: Tokens, seen: Tokens) -> float:
        if request == 1:
            return 0.0 if seen else float(third)
        return float(first[0, len(seen)]) if len(seen) < 3 else float(seen[2] == A)

    world = classic.world(4, confidence, requests=2)
    proof = prove(world, counted(planted.tree_survival, 3), rounds=1, coupled=False)
    found("survival rising in the last bit, fresh cut", proof)
    assert proof.probability(0, 2, A) == Fraction(8, 10) ** 2 * Fraction("0.85") + Fraction("0.36") * Fraction("0.7")
    # The serial product of the serving schedulers cannot rise.
    for build in (serving.top_k(3), serving.causal_scan((0.0, 1.0, 1.0, *(1.2 + 0.1 * n for n in range(9))))):
        assert prove(world, build, rounds=1, coupled=False, drafting=independent).total_variation == 0


def rising_in_the_last_bit() -> np.ndarray:
    """`[1, 4]` confidences whose tree product is larger at position 4 than at position 3."""
    rng = np.random.default_rng(0)
    while True:
        c = np.append(rng.uniform(0.5, 1.0, 3), 1.0).astype(np.float32)[None]
        a = planted.tree_survival(c)
        if a[0, 0] > a[0, 1] > a[0, 3] > a[0, 2]:
            return c
