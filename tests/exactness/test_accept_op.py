"""The serving accept decides as the exact rule does, for every draft and every cell of its uniforms."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from exact_prover.rule import decide, outcomes, residual
from exact_prover.worlds import Row, Tokens, row
from torch import Tensor

from sglang_dspark.ops.accept_torch import accept_torch
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import ACCEPT, LAST, Noise
from sglang_dspark.ops.ragged import RaggedRows

V, GAMMA = 3, 2


@dataclass(frozen=True)
class Laws:
    """p and q by the tokens before, in sixteenths: exact in float32. `support`: q lives on this many tokens."""

    seed: int
    support: int = V

    def p(self, before: Tokens) -> Row:
        return self._row("p", before, V)

    def q(self, before: Tokens) -> Row:
        return self._row("q", before, self.support)

    def _row(self, name: str, before: Tokens, support: int) -> Row:
        rng = random.Random(repr((self.seed, name, before)))
        cuts = sorted(rng.choices(range(17), k=support - 1))
        weights = [b - a for a, b in itertools.pairwise([0, *cuts, 16])] + [0] * (V - support)
        rng.shuffle(weights)
        return row(*weights)


@dataclass(frozen=True)
class Case:
    draft: Tokens
    length: int
    usable: int
    accepts: tuple[Fraction, ...]
    last: tuple[Fraction, ...]


def intervals(points: set[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """Between neighbours of 0, the points inside (0, 1), and 1."""
    return list(itertools.pairwise(sorted({Fraction(0), Fraction(1)} | {x for x in points if 0 < x < 1})))


def shares(weights: Row) -> set[Fraction]:
    """Where a uniform changes the token it picks."""
    return {x / sum(weights) for x in itertools.accumulate(weights)}


def cells(
    laws: Laws, draft: Tokens, length: int, usable: int
) -> Iterator[tuple[tuple[tuple[Fraction, Fraction], ...], ...]]:
    """Boxes of (accept uniforms of every position, last uniform) in which nothing can change."""
    tests, picks = [], set()
    for k in range(GAMMA + 1):
        p = laws.p(draft[:k])
        picks |= shares(p)
        if k < GAMMA:
            q = laws.q(draft[:k])
            picks |= shares(residual(p, q))
            tests.append(intervals({p[draft[k]] / q[draft[k]]} if q[draft[k]] else set()))
    used = min(length + 1, usable)
    unused = [(Fraction(0), Fraction(1))]
    for box in itertools.product(*(t if k < used else unused for k, t in enumerate(tests)), intervals(picks)):
        yield box[:-1], (box[-1],)


def emitted(laws: Laws, case: Case) -> Tokens:
    return decide(
        lambda accepted: laws.p(accepted),
        lambda k: laws.q(case.draft[:k]),
        case.draft,
        case.length,
        case.usable,
        True,
        case.accepts,
        case.last.__getitem__,
    )


def shapes() -> Iterator[tuple[Tokens, int, int]]:
    """Every (draft, length, usable)."""
    for usable in range(GAMMA + 1):
        for head in itertools.product(range(V), repeat=usable):
            for length in range(usable + 1):
                yield head + (0,) * (GAMMA - usable), length, usable


def drawable(laws: Laws, draft: Tokens, usable: int) -> bool:
    return all(laws.q(draft[:k])[draft[k]] for k in range(usable))


@pytest.mark.parametrize("laws", [Laws(0), Laws(1), Laws(2, support=2)], ids=str)
def test_the_rule_by_uniforms_has_the_probabilities_that_the_prover_uses(laws: Laws) -> None:
    for draft, length, usable in shapes():
        if not drawable(laws, draft, usable):
            continue
        measured: dict[Tokens, Fraction] = defaultdict(Fraction)
        for tests, (last,) in cells(laws, draft, length, usable):
            middle = [(a + b) / 2 for a, b in (*tests, last)]
            volume = Fraction(1)
            for a, b in (*tests, last):
                volume *= b - a
            measured[
                emitted(laws, Case(draft, length, usable, tuple(middle[:-1]), tuple(middle[-1:]) * (GAMMA + 1)))
            ] += volume
        law = dict(outcomes(laws.p, lambda k, d=draft: laws.q(d[:k]), draft, length, usable, True))
        assert {t: w for t, w in measured.items() if w} == law


class GivenNoise(Noise):
    """Uniforms chosen by the test: `accepts[r, k]` and `last[r]`."""

    def __init__(self, accepts: Tensor, last: Tensor) -> None:
        super().__init__(0, torch.arange(len(last)), torch.zeros(len(last), dtype=torch.int64))
        object.__setattr__(self, "given", (accepts, last))

    def uniform(self, purpose: int, positions: Tensor, request: Tensor) -> Tensor:
        accepts, last = self.given  # type: ignore[attr-defined]
        return accepts[request, positions] if purpose == ACCEPT else last[request]


def batch(laws: Laws, cases: list[Case]) -> tuple[Tensor, Tensor, Tensor, RaggedRows, Tensor]:
    """p rows, drafted tokens, q, layout, usable."""
    rows = RaggedRows.of([case.length for case in cases], "cpu")
    p = [laws.p(case.draft[:k]) for case in cases for k in range(case.length + 1)]
    q = [[laws.q(case.draft[:k]) for k in range(GAMMA)] for case in cases]
    usable = torch.tensor([case.usable for case in cases])
    tokens = torch.tensor([case.draft for case in cases])
    as_floats = torch.tensor([[float(w) for w in law] for law in p])
    return as_floats, tokens, torch.tensor([[[float(w) for w in law] for law in r] for r in q]), rows, usable


@pytest.mark.parametrize("laws", [Laws(0), Laws(1), Laws(2, support=2)], ids=str)
def test_the_serving_accept_decides_as_the_rule_in_every_cell(laws: Laws) -> None:
    """In the middle of every cell and close to its edges."""
    cases = []
    for draft, length, usable in shapes():
        if not drawable(laws, draft, usable):
            continue
        for tests, (last,) in cells(laws, draft, length, usable):
            for share in (Fraction(1, 2), Fraction(1, 2**40), 1 - Fraction(1, 2**40)):
                at = [Fraction(float(a + (b - a) * share)) for a, b in (*tests, last)]
                cases.append(Case(draft, length, usable, tuple(at[:-1]), tuple(at[-1:]) * (GAMMA + 1)))
    p, tokens, q, rows, usable_ = batch(laws, cases)
    accepts = torch.tensor([[float(u) for u in case.accepts] + [0.0] for case in cases], dtype=torch.float64)
    noise = GivenNoise(accepts, torch.tensor([float(case.last[0]) for case in cases], dtype=torch.float64))
    sparse = SparseQ.full(q)
    if laws.support < V:
        probs, ids = q.topk(laws.support, dim=-1)
        sparse = SparseQ(ids.int(), probs)
    got, counts, last_tokens = accept_torch(p.log(), p, tokens, sparse, usable_, rows, torch.ones(len(cases)), noise)
    for r, case in enumerate(cases):
        expected = emitted(laws, case)
        assert tuple(got[r, : counts[r]].tolist()) == expected, case
        assert int(last_tokens[r]) == expected[-1]
    assert len(cases) > 300


def test_the_serving_accept_reads_the_uniforms_it_is_documented_to_read() -> None:
    """With its own noise: one uniform for every (stream, round, position, purpose), used as the rule says."""
    laws, generator = Laws(4), torch.Generator().manual_seed(0)
    possible = [shape for shape in shapes() if drawable(laws, shape[0], shape[2])]
    chosen = [possible[i] for i in torch.randint(len(possible), (400,), generator=generator).tolist()]
    noise = Noise(11, torch.arange(len(chosen)) * 2**33, torch.arange(len(chosen)) % 7)
    everyone = torch.arange(len(chosen))
    uniforms = [
        torch.stack([noise.uniform(purpose, torch.full_like(everyone, k), everyone) for k in range(GAMMA + 1)], dim=1)
        for purpose in (ACCEPT, LAST)
    ]
    accepts, last = ([tuple(map(Fraction, u)) for u in table.tolist()] for table in uniforms)
    cases = [Case(*shape, accepts[r], last[r]) for r, shape in enumerate(chosen)]
    p, tokens, q, rows, usable = batch(laws, cases)
    got, counts, _ = accept_torch(p.log(), p, tokens, SparseQ.full(q), usable, rows, torch.ones(len(cases)), noise)
    for r, case in enumerate(cases):
        assert tuple(got[r, : counts[r]].tolist()) == emitted(laws, case), case
    assert len(set(counts.tolist())) == GAMMA + 1


def test_at_temperature_zero_the_accept_is_the_rule_for_deterministic_laws() -> None:
    """p and q put all weight on the target's and the draft's best token."""
    laws = Laws(3, support=1)
    best = {
        before: max(range(V), key=laws.p(before).__getitem__)
        for n in range(GAMMA + 1)
        for before in itertools.product(range(V), repeat=n)
    }
    cases = [
        Case(draft, length, usable, (Fraction(1, 2),) * GAMMA, (Fraction(1, 2),) * (GAMMA + 1))
        for draft, length, usable in shapes()
    ]
    rows = RaggedRows.of([case.length for case in cases], "cpu")
    logits = torch.tensor(
        [[float(w) for w in laws.p(case.draft[:k])] for case in cases for k in range(case.length + 1)]
    )
    got, counts, _ = accept_torch(
        logits,
        None,
        torch.tensor([case.draft for case in cases]),
        None,
        torch.tensor([case.usable for case in cases]),
        rows,
        None,
        GivenNoise(torch.full((len(cases), GAMMA + 1), 0.5), torch.full((len(cases),), 0.5)),
    )
    for r, case in enumerate(cases):
        law = list(
            outcomes(
                lambda accepted: row(*(int(v == best[accepted]) for v in range(V))),
                lambda k, case=case: row(*(int(v == case.draft[k]) for v in range(V))),
                case.draft,
                case.length,
                case.usable,
                True,
            )
        )
        assert law == [(tuple(got[r, : counts[r]].tolist()), Fraction(1))]
