"""Enumerate several rounds of speculative decoding and compare what was emitted with the target's own law."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from exact_prover.rule import outcomes
from exact_prover.worlds import Tokens, World

Sequences = tuple[Tokens, ...]
Lengths = tuple[int, ...]
# Anything hashable that a policy carries from one round to the next.
Memory = Any
Confidence = npt.NDArray[np.float64]
Draw = tuple[Fraction, Sequences, Any]
Drafting = Callable[[World, Sequences, Any], Iterable[Draw]]


def keep(memory: Memory, confidence: Confidence, lengths: Lengths, counts: Lengths) -> Memory:
    return memory


def no_coin(memory: Memory) -> list[tuple[Fraction, Memory]]:
    return [(Fraction(1), memory)]


@dataclass(frozen=True)
class Policy:
    """A thin adapter around scheduling functions.

    Attributes:
        plan: (memory, confidence `[R, gamma]`, limits `[R]`) -> lengths `[R]`.
        start: memory before the first round.
        learn: (memory, confidence, lengths, emitted counts) -> memory of the next round.
        coin: randomness of the schedule itself, drawn before the draft: memory -> (probability, memory to plan with).
    """

    name: str
    plan: Callable[[Memory, Confidence, npt.NDArray[np.int64]], Iterable[int]]
    start: Memory = None
    learn: Callable[[Memory, Confidence, Lengths, Lengths], Memory] = keep
    coin: Callable[[Memory], list[tuple[Fraction, Memory]]] = no_coin


@dataclass(frozen=True)
class Proof:
    """What an enumeration found.

    Attributes:
        leaves: draws of draft, schedule, accept and last token that were enumerated, states merged between rounds.
        plans: every vector of verify lengths that occurred; a proof in which it is always zero proves nothing.
        law, target: exact laws of the R texts of `length` tokens each.
    """

    leaves: int
    plans: frozenset[Lengths]
    law: dict[Sequences, Fraction]
    target: dict[Sequences, Fraction]

    @property
    def total_variation(self) -> Fraction:
        return distance(self.law, self.target)

    def probability(self, request: int, position: int, token: int) -> Fraction:
        """Of `token` at a position of one request's text."""
        return sum((w for s, w in self.law.items() if s[request][position] == token), Fraction(0))

    def request_variation(self, request: int) -> Fraction:
        """Total variation of one request's text alone."""
        return distance(marginal(self.law, request), marginal(self.target, request))


def distance(a: dict[Any, Fraction], b: dict[Any, Fraction]) -> Fraction:
    zero = Fraction(0)
    return sum((abs(a.get(s, zero) - b.get(s, zero)) for s in a.keys() | b.keys()), zero) / 2


def marginal(law: dict[Sequences, Fraction], request: int) -> dict[Tokens, Fraction]:
    out: dict[Tokens, Fraction] = defaultdict(Fraction)
    for sequences, weight in law.items():
        out[sequences[request]] += weight
    return out


def draft_paths(world: World, request: int, emitted: Tokens) -> list[tuple[Tokens, Fraction]]:
    """Every block the draft can draw. Past an unusable position, and for a finished request, nothing is drawn: 0."""
    if world.finished(emitted):
        return [((0,) * world.gamma, Fraction(1))]
    paths: list[tuple[Tokens, Fraction]] = [((), Fraction(1))]
    for k in range(world.gamma):
        extended = []
        for drafted, weight in paths:
            if world.finite(request, emitted, drafted + (0,) * (world.gamma - k)) <= k:
                extended.append(((*drafted, 0), weight))
                continue
            q = world.draft(request, emitted, drafted)
            extended += [((*drafted, v), weight * q[v]) for v in range(world.vocab) if q[v]]
        paths = extended
    return paths


def independent(world: World, sequences: Sequences, carry: Any) -> Iterable[Draw]:
    """Fresh noise for every request, round and position: what serving does."""
    paths = [draft_paths(world, r, s) for r, s in enumerate(sequences)]
    for combination in itertools.product(*paths):
        yield math.prod((w for _, w in combination), start=Fraction(1)), tuple(d for d, _ in combination), carry


def prove(
    world: World,
    policy: Policy,
    *,
    rounds: int,
    coupled: bool = True,
    drafting: Drafting = independent,
    limited: bool = True,
) -> Proof:
    """Run `rounds` rounds from empty texts, complete them by plain decoding, and set the result beside the target.

    Equal states (texts, policy memory, noise kept) are merged between rounds, which changes no probability.

    Args:
        limited: verify lengths respect the remaining length, as in serving; otherwise texts are cut afterwards.
    """
    run = _Enumeration(world, policy, coupled, drafting, limited)
    states: dict[Any, Fraction] = {(((),) * world.requests, policy.start, None): Fraction(1)}
    for _ in range(rounds):
        following: dict[Any, Fraction] = defaultdict(Fraction)
        for (sequences, memory, carry), mass in states.items():
            if world.requests and all(world.finished(s) for s in sequences):
                following[sequences, memory, carry] += mass
                continue
            for chance, planning in policy.coin(memory):
                for state, weight in run.round(sequences, planning, carry).items():
                    following[state] += mass * chance * weight
        states = following
    ended: dict[Sequences, Fraction] = defaultdict(Fraction)
    for (sequences, _, _), mass in states.items():
        ended[sequences] += mass
    empty = {((),) * world.requests: Fraction(1)}
    return Proof(run.leaves, run.plans, plain_decoding(world, ended), plain_decoding(world, empty))


def plain_decoding(world: World, law: dict[Sequences, Fraction]) -> dict[Sequences, Fraction]:
    """Continue every text to its full length by drawing from the target, request by request."""
    for request in range(world.requests):
        for size in range(world.length):
            longer: dict[Sequences, Fraction] = defaultdict(Fraction)
            for sequences, mass in law.items():
                text = sequences[request]
                if len(text) != size:
                    longer[sequences] += mass
                    continue
                steps = [(text, Fraction(1))]
                if not world.finished(text):
                    steps = [((*text, v), w) for v, w in enumerate(world.target(request, text)) if w]
                for step, w in steps:
                    longer[(*sequences[:request], world.closed(step), *sequences[request + 1 :])] += mass * w
            law = longer
    return dict(law)


class _Enumeration:
    def __init__(self, world: World, policy: Policy, coupled: bool, drafting: Drafting, limited: bool) -> None:
        self.world, self.policy, self.coupled, self.drafting, self.limited = world, policy, coupled, drafting, limited
        self.leaves = 0
        self._plans: dict[Any, Lengths] = {}
        self._tables: dict[Any, list[tuple[Tokens, Fraction]]] = {}
        self._rows: dict[Any, tuple[float, ...]] = {}

    @property
    def plans(self) -> frozenset[Lengths]:
        return frozenset(self._plans.values())

    def round(self, sequences: Sequences, memory: Memory, carry: Any) -> dict[Any, Fraction]:
        """Law of the next state after one round."""
        drawn = list(self.drafting(self.world, sequences, carry))
        planned = []
        for weight, drafts, next_carry in drawn:
            confidence = tuple(self._row(r, s, d) for r, (s, d) in enumerate(zip(sequences, drafts, strict=True)))
            limits = tuple(self._limit(r, s, d) for r, (s, d) in enumerate(zip(sequences, drafts, strict=True)))
            lengths = self._plan(memory, confidence, limits)
            tables = [self._table(r, *key) for r, key in enumerate(zip(sequences, drafts, lengths, strict=True))]
            planned.append((weight, confidence, lengths, tables, next_carry))

        # Integers over one denominator a request: the same sums as in fractions, an order of magnitude faster.
        scale = [math.lcm(*{w.denominator for *_, t, _ in planned for _, w in t[r]}) for r in range(len(sequences))]
        weight_scale = math.lcm(*{p[0].denominator for p in planned})
        integers: dict[int, list[tuple[Tokens, int]]] = {}
        for *_, tables, _ in planned:
            for r, table in enumerate(tables):
                if id(table) not in integers:
                    integers[id(table)] = [(text, w.numerator * (scale[r] // w.denominator)) for text, w in table]

        law: dict[Any, int] = defaultdict(int)
        for weight, confidence, lengths, tables, next_carry in planned:
            base = weight.numerator * (weight_scale // weight.denominator)
            memories: dict[Lengths, Memory] = {}
            self.leaves += math.prod(map(len, tables))
            for leaf in itertools.product(*(integers[id(t)] for t in tables)):
                value = base
                for _, w in leaf:
                    value *= w
                texts = tuple(text for text, _ in leaf)
                counts = tuple(len(t) - len(s) for t, s in zip(texts, sequences, strict=True))
                if counts not in memories:
                    memories[counts] = self._learn(memory, confidence, lengths, counts)
                law[texts, memories[counts], next_carry] += value
        whole = weight_scale * math.prod(scale)
        return {state: Fraction(value, whole) for state, value in law.items()}

    def _row(self, r: int, emitted: Tokens, draft: Tokens) -> tuple[float, ...]:
        key = (r, emitted, draft)
        if key not in self._rows:
            # A finished request that still sits in the batch looks as tempting as can be.
            finished = self.world.finished(emitted)
            self._rows[key] = (1.0,) * self.world.gamma if finished else self.world.confidences(r, emitted, draft)
        return self._rows[key]

    def _plan(self, memory: Memory, confidence: Any, limits: Lengths) -> Lengths:
        key = (memory, confidence, limits)
        if key not in self._plans:
            planned = self.policy.plan(memory, self._array(confidence), np.array(limits, dtype=np.int64))
            lengths = tuple(int(n) for n in planned)
            assert len(lengths) == len(limits)
            assert all(0 <= n <= m for n, m in zip(lengths, limits, strict=True)), (lengths, limits)
            self._plans[key] = lengths
        return self._plans[key]

    def _limit(self, r: int, emitted: Tokens, draft: Tokens) -> int:
        """As in serving: 0 for a finished request, the room left, what was drawn, nothing past an end token."""
        world = self.world
        if world.finished(emitted):
            return 0
        room = world.length - len(emitted) - 1 if self.limited else world.gamma
        if world.end is not None and world.end in draft:
            room = min(room, draft.index(world.end) + 1)
        return min(room, world.usable(r, emitted, draft))

    def _table(self, r: int, emitted: Tokens, draft: Tokens, length: int) -> list[tuple[Tokens, Fraction]]:
        """Texts of request r after the round, with their probabilities; sums to 1."""
        key = (r, emitted, draft, length)
        if key not in self._tables:
            self._tables[key] = list(self._ends(r, emitted, draft, length))
        return self._tables[key]

    def _ends(self, r: int, emitted: Tokens, draft: Tokens, length: int) -> Iterable[tuple[Tokens, Fraction]]:
        world = self.world
        if world.finished(emitted):
            yield emitted, Fraction(1)
            return
        law = world.claimed or world.draft
        for tokens, weight in outcomes(
            lambda accepted: world.target(r, emitted + accepted),
            lambda k: law(r, emitted, draft[:k]),
            draft,
            length,
            world.usable(r, emitted, draft),
            self.coupled,
        ):
            yield world.closed(emitted + tokens), weight

    def _learn(self, memory: Memory, confidence: Any, lengths: Lengths, counts: Lengths) -> Memory:
        return self.policy.learn(memory, self._array(confidence), lengths, counts)

    def _array(self, confidence: Any) -> Confidence:
        return np.array(confidence, dtype=np.float64).reshape(len(confidence), self.world.gamma)
