"""Planted errors: scheduling rules and noise that look harmless. The prover has to find every one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from exact_prover.enumeration import Confidence, Drafting, Draw, Sequences
from exact_prover.worlds import Row, Tokens, World
from sglang_dspark.schedule.policies import threshold
from sglang_dspark.schedule.survival import survival

Limits = npt.NDArray[np.int64]
Plan = list[int]


def merged(a: Confidence, limits: Limits) -> list[tuple[int, int]]:
    """(request, position from 1) of every candidate in the order of the scan: survival, then position, then request."""
    candidates = [
        (-a[r, k], k, r) for r, k in np.ndindex(*a.shape) if k < limits[r] and a[r, k] > 0 and not np.isnan(a[r, k])
    ]
    return [(r, k + 1) for _, k, r in sorted(candidates)]


def throughput(a: Confidence, candidates: list[tuple[int, int]], seconds: tuple[float, ...]) -> float:
    """Θ of a plan, given as the positions it admits."""
    tokens = a.shape[0] + sum(a[r, k - 1] for r, k in candidates)
    return float(tokens / seconds[a.shape[0] + len(candidates)])


def lengths_of(candidates: list[tuple[int, int]], requests: int) -> Plan:
    """Positions admitted per request."""
    return [sum(1 for r, _ in candidates if r == request) for request in range(requests)]


def unconstrained_argmax(confidence: Confidence, seconds: tuple[float, ...], limits: Limits) -> Plan:
    """The best Θ over this round's confidences: knows the last token when it decides about the first."""
    a = survival(confidence)
    order = merged(a, limits)
    best = max(range(len(order) + 1), key=lambda n: throughput(a, order[:n], seconds))
    return lengths_of(order[:best], len(a))


def peeking_scan(confidence: Confidence, seconds: tuple[float, ...], limits: Limits, further: int) -> Plan:
    """The scan, which also looks at `further` candidates behind the next one before it stops."""
    a = survival(confidence)
    order = merged(a, limits)
    admitted = 0
    while admitted < len(order):
        now = throughput(a, order[:admitted], seconds)
        reach = range(admitted + 1, min(admitted + 1 + further, len(order)) + 1)
        if all(throughput(a, order[:n], seconds) <= now for n in reach):
            break
        admitted += 1
    return lengths_of(order[:admitted], len(a))


def best_whole_plan(confidence: Confidence, seconds: tuple[float, ...], limits: Limits) -> Plan:
    """No drafting, ℓ = 1 everywhere or ℓ = γ everywhere, by Θ under this round's confidences."""
    a = survival(confidence)
    plans = [np.minimum(limits, length) for length in (0, 1, a.shape[1])]

    def value(plan: Limits) -> float:
        return throughput(a, [(r, k + 1) for r, n in enumerate(plan) for k in range(n)], seconds)

    return [int(n) for n in max(plans, key=value)]


def whole_row_fallback(confidence: Confidence, minimum: float, limits: Limits) -> Plan:
    """A confidence that is not a number anywhere in the block switches the request off for the round."""
    bad = np.isnan(confidence).any(axis=1)
    return [int(n) for n in threshold(confidence, minimum, np.where(bad, 0, limits))]


def crossed(confidence: Confidence, limits: Limits) -> Plan:
    """Each of two requests is verified when the other's second confidence is high.

    Whether position k of a request is admitted never depends on its own later tokens, and still the plan depends on
    tokens that it does not test.
    """
    return [int(limits[0] * (confidence[1, 1] > 0.5)), int(limits[1] * (confidence[0, 1] > 0.5))]


def counted_top_k(a: Confidence, budget: int, limits: Limits) -> Plan:
    """The K largest survivals, however they are ordered within a request; ℓ counts them."""
    return lengths_of(merged(a, limits)[:budget], len(a))


def tree_survival(confidence: Confidence) -> Confidence:
    """Cumulative product by doubling (a parallel prefix scan) in float32: not monotone in the last bit."""
    a = confidence.astype(np.float32)
    step = 1
    while step < a.shape[1]:
        a = np.concatenate([a[:, :step], a[:, step:] * a[:, :-step]], axis=1)
        step *= 2
    return a.astype(np.float64)


def quantile(law: Row, cell: int, cells: int) -> int:
    """The token that uniform noise in [cell, cell + 1) / cells picks; the law's steps must lie on the grid."""
    total = Fraction(0)
    for token, weight in enumerate(law):
        assert (weight * cells).denominator == 1, "choose a finer grid"
        total += weight
        if Fraction(cell, cells) < total:
            return token
    raise AssertionError("the law does not sum to 1")


def draft_from(world: World, request: int, emitted: Tokens, noise: list[int], cells: int) -> Tokens:
    draft: Tokens = ()
    for cell in noise:
        draft = (*draft, quantile(world.draft(request, emitted, draft), cell, cells))
    return draft


def keyed_by_position(cells: int) -> Drafting:
    """Draft noise is a function of (request, absolute position): a redrafted position draws with the same noise."""

    def draws(world: World, sequences: Sequences, carry: Any) -> Iterable[Draw]:
        known = carry or ((),) * len(sequences)
        new = world.gamma * len(sequences) - sum(len(row) for row in known)
        for fresh in itertools.product(range(cells), repeat=new):
            supply = iter(fresh)
            noise = [[*row, *itertools.islice(supply, world.gamma - len(row))] for row in known]
            drafts = tuple(draft_from(world, r, s, noise[r], cells) for r, s in enumerate(sequences))
            yield Fraction(1, cells**new), drafts, (sequences, tuple(map(tuple, noise)))

    def moved(world: World, sequences: Sequences, carry: Any) -> Iterable[Draw]:
        if carry is not None:
            before, noise = carry
            carry = tuple(row[len(s) - len(b) :] for s, b, row in zip(sequences, before, noise, strict=True))
        return draws(world, sequences, carry)

    return moved


def shared_between_requests(cells: int) -> Drafting:
    """Every request draws position k of its block with the same noise, as requests of one seed would."""

    def draws(world: World, sequences: Sequences, carry: Any) -> Iterable[Draw]:
        for noise in itertools.product(range(cells), repeat=world.gamma):
            drafts = tuple(draft_from(world, r, s, list(noise), cells) for r, s in enumerate(sequences))
            yield Fraction(1, cells**world.gamma), drafts, carry

    return draws
