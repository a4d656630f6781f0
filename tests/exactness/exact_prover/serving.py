"""Adapters: the scheduling functions that serve, as policies of the prover. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from exact_prover.enumeration import Confidence, Lengths, Memory, Policy
from sglang_dspark.ops import schedule as compiled
from sglang_dspark.schedule import policies, prefix
from sglang_dspark.schedule.lookahead import causal_scan_ahead
from sglang_dspark.schedule.survival import survival

Seconds = tuple[float, ...]
Limits = npt.NDArray[np.int64]


def fixed(length: int) -> Policy:
    return Policy(f"fixed {length}", lambda memory, c, limits: policies.fixed(length, limits))


def threshold(minimum: float) -> Policy:
    return Policy(f"threshold {minimum}", lambda memory, c, limits: policies.threshold(c, minimum, limits))


def causal_scan(seconds: Seconds) -> Policy:
    return Policy("causal scan", lambda memory, c, limits: prefix.causal_scan(c, seconds, limits))


def causal_scan_compiled(seconds: Seconds) -> Policy:
    return Policy("causal scan, compiled", lambda memory, c, limits: compiled.causal_scan(c, seconds, limits))


def look_ahead(seconds: Seconds, gamma: int) -> Policy:
    """Predictions are high or low per position, by the mean confidence of the round before."""

    def learn(memory: Memory, confidence: Confidence, lengths: Lengths, counts: Lengths) -> Memory:
        means = np.nan_to_num(confidence).sum(axis=0) / max(1, len(confidence))
        return tuple(0.9 if mean >= 0.8 else 0.3 for mean in means)

    def plan(memory: Memory, confidence: Confidence, limits: Limits) -> npt.NDArray[np.int64]:
        return causal_scan_ahead(confidence, np.broadcast_to(memory, confidence.shape), seconds, limits)

    return Policy("causal scan with look-ahead", plan, (0.9,) * gamma, learn)


def lagged(seconds: Seconds, age: int = 1, first: int = 0) -> Policy:
    """Budget from the confidences of `age` rounds before; memory is the queue of budgets still to be used.

    Args:
        first: budget of the rounds for which no earlier confidences exist.
    """

    def learn(memory: Memory, confidence: Confidence, lengths: Lengths, counts: Lengths) -> Memory:
        return (*memory[1:], _budget(prefix.best_budget, confidence, seconds))

    return Policy(
        f"lagged budget, {age} round{'s' * (age > 1)} old",
        lambda memory, c, limits: prefix.lagged_topk(c, memory[0], limits),
        (first,) * age,
        learn,
    )


def lagged_compiled(seconds: Seconds, first: int = 0) -> Policy:
    return Policy(
        "lagged budget, compiled",
        lambda memory, c, limits: compiled.lagged_topk(c, memory, limits),
        first,
        lambda memory, c, lengths, counts: _budget(compiled.best_budget, c, seconds),
    )


def _budget(best_budget: Callable[..., int], confidence: Confidence, seconds: Seconds) -> int:
    return best_budget(confidence, seconds, np.full(len(confidence), confidence.shape[1]))


def top_k(budget: int) -> Policy:
    return Policy(f"top-K, K = {budget}", lambda memory, c, limits: prefix.lagged_topk(c, budget, limits))


def changing_modes(seconds: Seconds, gamma: int) -> Policy:
    """None, ℓ = 1, ℓ = γ or the scan; the mode of a round is decided from what earlier rounds showed.

    A round that accepted everything goes up a mode, one that accepted nothing goes down, and a first confidence below
    one half in the round before sends the next round to ℓ = 1: a fuse and a guard in their smallest form.
    """
    modes: list[Callable[[Confidence, Limits], npt.NDArray[np.int64]]] = [
        lambda c, limits: policies.fixed(0, limits),
        lambda c, limits: policies.fixed(1, limits),
        lambda c, limits: prefix.causal_scan(c, seconds, limits),
        lambda c, limits: policies.fixed(gamma, limits),
    ]

    def learn(memory: Memory, confidence: Confidence, lengths: Lengths, counts: Lengths) -> Memory:
        if (survival(confidence)[:, 0] < 0.5).any():
            return 1
        accepted_all = all(count == length + 1 for count, length in zip(counts, lengths, strict=True))
        return min(memory + 1, 3) if accepted_all else max(memory - 1, 0)

    return Policy("mode changes", lambda memory, c, limits: modes[memory](c, limits), 2, learn)


def exploring(policy: Policy, gamma: int, chance: Fraction = Fraction(1, 4)) -> Policy:
    """Full-γ rounds at random, chosen before anything of the round is drawn."""

    def plan(memory: Memory, confidence: Confidence, limits: Limits) -> npt.NDArray[np.int64]:
        explore, own = memory
        return policies.fixed(gamma, limits) if explore else np.asarray(list(policy.plan(own, confidence, limits)))

    def coin(memory: Memory) -> list[tuple[Fraction, Memory]]:
        return [(chance, (True, memory[1])), (1 - chance, (False, memory[1]))]

    def learn(memory: Memory, confidence: Confidence, lengths: Lengths, counts: Lengths) -> Memory:
        return (False, policy.learn(memory[1], confidence, lengths, counts))

    return Policy(f"{policy.name} with exploration", plan, (False, policy.start), learn, coin)
