"""Accept over ragged rows: the distribution of what is emitted, the coupled cut, mixed batches, unusable drafts."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from draft_cases import make_head, make_noise
from scipy.stats import chisquare

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.categorical import draw
from sglang_dspark.ops.draft_block import DraftBlock, MarkovHead, draft_block
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.target_probs import Filters, target_probs

V, GAMMA = 4, 3
MISSHAPEN = DraftBlock(torch.zeros(2, 2).long(), SparseQ.full(torch.zeros(2, 3, V)), None, torch.zeros(2).long())
FORMS = pytest.mark.parametrize("support", [None, 2], ids=["dense", "sparse"])


class World:
    """A target and a draft over V tokens whose next-token distributions depend on the token before."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.p = torch.tensor(rng.dirichlet(np.full(V, 0.7), size=V), dtype=torch.float32)
        self.base = torch.tensor(rng.normal(size=(GAMMA, V)) * 1.5, dtype=torch.float32)
        w1 = torch.tensor(rng.normal(size=(V, 2)), dtype=torch.float32)
        w2 = torch.tensor(rng.normal(size=(V, 2)), dtype=torch.float32)
        self.head = MarkovHead("vanilla", w1, w2)

    def round(self, anchors, lengths, noise, isa, support, temperature: float = 1.0, explicit_p: bool = False):
        size = len(anchors)
        temperatures = torch.full((size,), temperature)
        block = draft_block(
            self.base.expand(size, GAMMA, V), anchors, torch.zeros(size, GAMMA, 1), self.head, None, temperatures,
            noise, support=support, isa=isa,
        )  # fmt: skip
        rows = RaggedRows.of(lengths, "cpu")
        verify_ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
        p = self.p[verify_ids[rows.request, rows.offset]]
        # softmax(T log p / T) is p again.
        logits = p.log() * temperature
        accepted = accept(logits, block, rows, temperatures, noise, p if explicit_p else None, isa=isa)
        return block, accepted

    def probability(self, tokens: tuple[int, ...], anchor: int) -> float:
        value, previous = 1.0, anchor
        for token in tokens:
            value *= float(self.p[previous, token])
            previous = token
        return value


@FORMS
@pytest.mark.parametrize("lengths", [(0,), (1,), (2,), (3,), (3, 0, 1, 2)], ids=str)
@pytest.mark.parametrize(("seed", "explicit_p", "temperature"), [(0, False, 1.0), (1, True, 0.6), (2, False, 2.5)])
@pytest.mark.known_case(15)
def test_emitted_tokens_follow_the_target(implementation, support, lengths, seed, explicit_p, temperature) -> None:
    """Two tokens further, completed by plain decoding where a round emitted fewer, the law is the target's."""
    world, size, anchor = World(seed), 60_000, 2
    repeated = [lengths[i % len(lengths)] for i in range(size)]
    noise = Noise(seed, torch.arange(size), torch.zeros(size, dtype=torch.int64))
    _, accepted = world.round(
        torch.full((size,), anchor), repeated, noise, implementation, support, temperature, explicit_p
    )
    first = accepted.tokens[:, 0]
    plain = draw(world.p[first], torch.Generator().manual_seed(seed))
    second = torch.where(accepted.counts > 1, accepted.tokens[:, 1], plain)
    observed = torch.bincount(first * V + second, minlength=V * V).numpy()
    expected = np.array([world.probability(pair, anchor) for pair in itertools.product(range(V), repeat=2)]) * size
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_many_rounds_of_few_requests_follow_the_target(isa) -> None:
    """The noise of successive rounds is as good as that of different requests."""
    world, rounds, requests = World(4), 400, 50
    counts = torch.zeros(V, dtype=torch.int64)
    for round_ in range(rounds):
        noise = make_noise(requests, round_=round_)
        _, accepted = world.round(torch.full((requests,), 1), [2] * requests, noise, isa, None)
        counts += torch.bincount(accepted.tokens[:, 0], minlength=V)
    expected = world.p[1].double().numpy()
    assert chisquare(counts.numpy(), expected / expected.sum() * rounds * requests).pvalue > 1e-4


def test_a_biased_accept_is_found(implementation) -> None:
    """The same test must fail when q is not what was drawn from (planted: q rounded to one decimal)."""
    world, size, anchor = World(0), 60_000, 2
    noise = make_noise(size)
    block, _ = world.round(torch.full((size,), anchor), [GAMMA] * size, noise, implementation, V)
    assert isinstance(block.q, SparseQ)
    wrong = dataclasses.replace(block, q=SparseQ(block.q.ids, (block.q.probs * 10).round() / 10))
    rows = RaggedRows.of([GAMMA] * size, "cpu")
    ids = torch.cat([torch.full((size, 1), anchor), block.tokens], dim=1)
    p = world.p[ids[rows.request, rows.offset]]
    first = accept(p.log(), wrong, rows, torch.ones(size), noise, isa=implementation).tokens[:, 0]
    observed = torch.bincount(first, minlength=V).numpy()
    expected = world.p[anchor].double().numpy()
    assert chisquare(observed, expected * size / expected.sum()).pvalue < 1e-6


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.known_case(15, 18)
def test_filtered_target_is_followed(implementation, top_k: int) -> None:
    """Known case 15: top-k = 1 at T = 1 is greedy; top-k = 2 is the renormalised pair."""
    world, size, anchor = World(5), 30_000, 3
    noise, rows = make_noise(size), RaggedRows.of([2] * size, "cpu")
    block, _ = world.round(torch.full((size,), anchor), [2] * size, noise, implementation, 3)
    ids = torch.cat([torch.full((size, 1), anchor), block.tokens], dim=1)
    logits = world.p[ids[rows.request, rows.offset]].log()
    p = target_probs(logits, torch.ones(rows.total), Filters(top_k=torch.full((rows.total,), top_k)))
    first = accept(logits, block, rows, torch.ones(size), noise, p, isa=implementation).tokens[:, 0]
    kept, which = world.p[anchor].double().topk(top_k)
    expected = torch.zeros(V, dtype=torch.float64).scatter_(0, which, kept / kept.sum()) * size
    observed = torch.bincount(first, minlength=V)
    assert int(observed[expected == 0].sum()) == 0
    if top_k > 1:
        assert chisquare(observed[expected > 0].numpy(), expected[expected > 0].numpy()).pvalue > 1e-4


def test_coupled_cut_reuses_the_drawn_token(implementation) -> None:
    """At ℓ < γ with everything accepted, a certain acceptance emits x_{ℓ+1} itself."""
    tokens = torch.tensor([[1, 2, 3]])
    q = SparseQ.full(torch.zeros(1, 3, V).scatter_(2, tokens.unsqueeze(-1), 1.0))
    p = torch.full((2, V), 1e-9)
    p[0, 1] = p[1, 2] = 1.0
    rows = RaggedRows.of([1], "cpu")
    block = DraftBlock(tokens, q, None, torch.tensor([3]))
    accepted = accept(p.log(), block, rows, torch.ones(1), make_noise(1), isa=implementation)
    assert accepted.tokens[0, :2].tolist() == [1, 2]
    assert accepted.counts.tolist() == [2]
    assert accepted.last.tolist() == [2]


def test_greedy_rows_take_the_longest_agreeing_prefix(implementation) -> None:
    tokens = torch.tensor([[1, 2, 3], [1, 0, 3], [0, 0, 0]])
    rows = RaggedRows.of([3, 2, 1], "cpu")
    best = torch.tensor([1, 2, 3, 0, 1, 2, 1, 3, 3])
    logits = torch.nn.functional.one_hot(best, V).float()
    block = DraftBlock(tokens, None, None, torch.full((3,), 3))
    accepted = accept(logits, block, rows, None, isa=implementation)
    assert accepted.counts.tolist() == [4, 2, 1]
    assert [accepted.tokens[r, :c].tolist() for r, c in enumerate([4, 2, 1])] == [[1, 2, 3, 0], [1, 2], [3]]


@FORMS
def test_mixed_batch_keeps_greedy_rows_greedy(implementation, support) -> None:
    world, size = World(3), 200
    anchors = torch.arange(size) % V
    temperatures = torch.where(torch.arange(size) % 2 == 0, 0.0, 1.0)
    base, noise = world.base.expand(size, GAMMA, V), make_noise(size)
    block = draft_block(
        base, anchors, torch.zeros(size, GAMMA, 1), world.head, None, temperatures, noise, support=support,
        isa=implementation,
    )  # fmt: skip
    rows = RaggedRows.of([GAMMA] * size, "cpu")
    ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
    p = world.p[ids[rows.request, rows.offset]]
    accepted = accept(p.log(), block, rows, temperatures, noise, isa=implementation)
    for r in range(0, size, 2):
        previous = int(anchors[r])
        for token in accepted.tokens[r, : accepted.counts[r]].tolist():
            assert token == int(world.p[previous].argmax())
            previous = token


@FORMS
def test_unusable_positions_are_not_tested_and_the_cut_is_fresh(implementation, support) -> None:
    """A NaN in position 2 leaves position 1 usable; past it the emitted token is a fresh draw of p."""
    world, size = World(1), 40_000
    base = world.base.expand(size, GAMMA, V).clone()
    base[:, 1, 2] = float("nan")
    noise, anchors = make_noise(size), torch.zeros(size).long()
    block = draft_block(
        base, anchors, torch.zeros(size, GAMMA, 1), world.head, None, torch.ones(size), noise, support=support,
        isa=implementation,
    )  # fmt: skip
    assert block.usable.unique().tolist() == [1]
    rows = RaggedRows.of([1] * size, "cpu")
    ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
    p = world.p[ids[rows.request, rows.offset]]
    accepted = accept(p.log(), block, rows, torch.ones(size), noise, isa=implementation)
    both = accepted.counts == 2
    pairs = torch.bincount(accepted.tokens[both, 0] * V + accepted.tokens[both, 1], minlength=V * V).view(V, V)
    for first in range(V):
        observed = pairs[first].numpy()
        if observed.sum() > 500:
            expected = world.p[first].double().numpy()
            assert chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 1e-4


@pytest.mark.known_case(20)
def test_skipped_draft_emits_one_token_per_request(implementation) -> None:
    block = DraftBlock.skipped(2, GAMMA, "cpu")
    logits = torch.eye(V)[:2]
    rows = RaggedRows.of([0, 0], "cpu")
    accepted = accept(logits, block, rows, None, isa=implementation)
    assert accepted.counts.tolist() == [1, 1]
    assert accepted.last.tolist() == [0, 1]
    sampled = accept(logits * 1e3, block, rows, torch.ones(2), make_noise(2), isa=implementation)
    assert sampled.last.tolist() == [0, 1]


@pytest.mark.known_case(15)
def test_dense_residual_is_the_sampler_s_own_q(isa) -> None:
    """p equal to q, bit for bit, never rejects; and what a rejection leaves never contains tokens with p < q."""
    head = make_head("vanilla", 1500, 64, 1, dtype=torch.bfloat16)
    size = 30
    base = torch.randn(size, GAMMA, 1500, generator=torch.Generator().manual_seed(0))
    noise, temperatures = make_noise(size), torch.full((size,), 0.9)
    arguments = (base, torch.arange(size), torch.zeros(size, GAMMA, 1), head, None, temperatures, noise)
    dense = draft_block(*arguments, isa=isa)
    full = draft_block(*arguments, support=1500, isa=isa)
    rows = RaggedRows.of([GAMMA] * size, "cpu")
    p = torch.rand(rows.total, 1500, generator=torch.Generator().manual_seed(1)) ** 4
    p /= p.sum(dim=1, keepdim=True)
    logits = p.log() * 0.9
    one, other = (accept(logits, block, rows, temperatures, noise, isa=isa) for block in (dense, full))
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.counts, other.counts)
    assert int(one.counts.max()) <= GAMMA  # p and q have little in common: rejections were drawn from


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("target_logits", {"target_logits": torch.zeros(3, V)}),
        ("target_logits", {"target_logits": torch.zeros(2)}),
        ("p:", {"p": torch.zeros(2, V + 1)}),
        ("p:", {"p": torch.zeros(2, V, dtype=torch.float64)}),
        ("rows", {"rows": RaggedRows.of([1], "cpu"), "target_logits": torch.zeros(2, V)}),
        ("rows", {"rows": RaggedRows.of([3, 0], "cpu"), "target_logits": torch.zeros(5, V)}),
        ("temperatures", {"temperatures": torch.ones(3)}),
        ("temperatures", {"temperatures": torch.tensor([1.0, float("inf")])}),
        ("noise", {"noise": None}),
        ("block.q", {"block": MISSHAPEN}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(implementation, name: str, change: dict) -> None:
    arguments = {
        "target_logits": torch.zeros(2, V),
        "block": DraftBlock.skipped(2, 2, "cpu"),
        "rows": RaggedRows.of([0, 0], "cpu"),
        "temperatures": torch.ones(2),
        "noise": make_noise(2),
        "isa": implementation,
    }
    with pytest.raises(ValueError, match=name):
        accept(**(arguments | change))
