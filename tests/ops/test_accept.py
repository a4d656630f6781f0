"""Accept over ragged rows: the distribution of what is emitted, the coupled cut, mixed batches, unusable drafts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.categorical import draw
from sglang_dspark.ops.draft_block import DraftBlock, MarkovHead, draft_block
from sglang_dspark.ops.ragged import RaggedRows

V, GAMMA = 4, 3


class World:
    """A target and a draft over V tokens whose next-token distributions depend on the token before."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.p = torch.tensor(rng.dirichlet(np.full(V, 0.7), size=V), dtype=torch.float32)
        self.base = torch.tensor(rng.normal(size=(GAMMA, V)) * 1.5, dtype=torch.float32)
        w1 = torch.tensor(rng.normal(size=(V, 2)), dtype=torch.float32)
        w2 = torch.tensor(rng.normal(size=(V, 2)), dtype=torch.float32)
        self.head = MarkovHead("vanilla", w1, w2)

    def round(self, anchors: torch.Tensor, lengths: list[int], generator: torch.Generator, temperature: float = 1.0):
        size = len(anchors)
        block = draft_block(
            self.base.expand(size, GAMMA, V),
            anchors,
            torch.zeros(size, GAMMA, 1),
            self.head,
            None,
            torch.full((size,), temperature),
            generator,
        )
        rows = RaggedRows.of(lengths, "cpu")
        verify_ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
        p = self.p[verify_ids[rows.request, rows.offset]]
        greedy = torch.full((size,), temperature == 0)
        return block, accept(p.log(), p, block, rows, greedy, generator)

    def probability(self, tokens: tuple[int, ...], anchor: int) -> float:
        value, previous = 1.0, anchor
        for token in tokens:
            value *= float(self.p[previous, token])
            previous = token
        return value


@pytest.mark.parametrize("lengths", [(0,), (1,), (2,), (3,), (3, 0, 1, 2)], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_emitted_tokens_follow_the_target(lengths: tuple[int, ...], seed: int) -> None:
    """Two tokens further, completed by plain decoding where a round emitted fewer, the law is the target's."""
    world, generator = World(seed), torch.Generator().manual_seed(seed)
    size, anchor = 60_000, 2
    repeated = [lengths[i % len(lengths)] for i in range(size)]
    _, accepted = world.round(torch.full((size,), anchor), repeated, generator)
    first = accepted.tokens[:, 0]
    second = torch.where(accepted.counts > 1, accepted.tokens[:, 1], draw(world.p[first], generator))
    observed = torch.bincount(first * V + second, minlength=V * V).numpy()
    expected = np.array([world.probability(pair, anchor) for pair in itertools.product(range(V), repeat=2)]) * size
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_a_biased_accept_is_found() -> None:
    """The same test must fail when q is not what was drawn from (planted: q rounded to two decimals)."""
    world, generator = World(0), torch.Generator().manual_seed(0)
    size, anchor = 60_000, 2
    block, _ = world.round(torch.full((size,), anchor), [GAMMA] * size, generator)
    assert block.q is not None
    wrong = DraftBlock(block.tokens, (block.q * 10).round() / 10, None, block.usable)
    rows = RaggedRows.of([GAMMA] * size, "cpu")
    ids = torch.cat([torch.full((size, 1), anchor), block.tokens], dim=1)
    p = world.p[ids[rows.request, rows.offset]]
    first = accept(p.log(), p, wrong, rows, torch.zeros(size, dtype=torch.bool), generator).tokens[:, 0]
    observed = torch.bincount(first, minlength=V).numpy()
    assert (
        chisquare(observed, world.p[anchor].double().numpy() * size / world.p[anchor].double().sum().item()).pvalue
        < 1e-6
    )


def test_coupled_cut_reuses_the_drawn_token() -> None:
    """At ℓ < γ with everything accepted, a certain acceptance emits x_{ℓ+1} itself."""
    tokens = torch.tensor([[1, 2, 3]])
    q = torch.zeros(1, 3, V).scatter_(2, tokens.unsqueeze(-1), 1.0)
    p = torch.full((2, V), 1e-9)
    p[0, 1] = p[1, 2] = 1.0
    rows = RaggedRows.of([1], "cpu")
    block = DraftBlock(tokens, q, None, torch.tensor([3]))
    accepted = accept(p.log(), p, block, rows, torch.tensor([False]), torch.Generator().manual_seed(0))
    assert accepted.tokens[0, :2].tolist() == [1, 2]
    assert accepted.counts.tolist() == [2]
    assert accepted.last.tolist() == [2]


def test_greedy_rows_take_the_longest_agreeing_prefix() -> None:
    tokens = torch.tensor([[1, 2, 3], [1, 0, 3], [0, 0, 0]])
    rows = RaggedRows.of([3, 2, 1], "cpu")
    best = torch.tensor([1, 2, 3, 0, 1, 2, 1, 3, 3])
    logits = torch.nn.functional.one_hot(best, V).float()
    block = DraftBlock(tokens, None, None, torch.full((3,), 3))
    accepted = accept(logits, None, block, rows, torch.ones(3, dtype=torch.bool))
    assert accepted.counts.tolist() == [4, 2, 1]
    assert [accepted.tokens[r, :c].tolist() for r, c in enumerate([4, 2, 1])] == [[1, 2, 3, 0], [1, 2], [3]]


def test_mixed_batch_keeps_greedy_rows_greedy() -> None:
    world, generator = World(3), torch.Generator().manual_seed(3)
    size = 200
    anchors = torch.arange(size) % V
    temperatures = torch.where(torch.arange(size) % 2 == 0, 0.0, 1.0)
    base = world.base.expand(size, GAMMA, V)
    block = draft_block(base, anchors, torch.zeros(size, GAMMA, 1), world.head, None, temperatures, generator)
    rows = RaggedRows.of([GAMMA] * size, "cpu")
    ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
    p = world.p[ids[rows.request, rows.offset]]
    accepted = accept(p.log(), p, block, rows, temperatures == 0, generator)
    for r in range(0, size, 2):
        previous = int(anchors[r])
        for token in accepted.tokens[r, : accepted.counts[r]].tolist():
            assert token == int(world.p[previous].argmax())
            previous = token


def test_unusable_positions_are_not_tested_and_the_cut_is_fresh() -> None:
    """A NaN in position 2 leaves position 1 usable; past it the emitted token is a fresh draw of p."""
    world, generator = World(1), torch.Generator().manual_seed(1)
    base = world.base.expand(1, GAMMA, V).clone()
    base[0, 1, 2] = float("nan")
    block = draft_block(base, torch.tensor([0]), torch.zeros(1, GAMMA, 1), world.head, None, torch.ones(1), generator)
    assert block.usable.tolist() == [1]
    size = 40_000
    many = DraftBlock(
        torch.zeros(size, GAMMA, dtype=torch.int64), torch.zeros(size, GAMMA, V), None, torch.zeros(size).long()
    )
    p = world.p[0].expand(size, V)
    accepted = accept(p.log(), p, many, RaggedRows.of([0] * size, "cpu"), torch.zeros(size).bool(), generator)
    observed = torch.bincount(accepted.last, minlength=V).numpy()
    assert chisquare(observed, world.p[0].double().numpy() / world.p[0].double().sum().item() * size).pvalue > 1e-4


def test_skipped_draft_emits_one_token_per_request() -> None:
    block = DraftBlock.skipped(2, GAMMA, "cpu")
    logits = torch.eye(V)[:2]
    accepted = accept(logits, None, block, RaggedRows.of([0, 0], "cpu"), torch.ones(2, dtype=torch.bool))
    assert accepted.counts.tolist() == [1, 1]
    assert accepted.last.tolist() == [0, 1]


def test_row_count_mismatch_names_the_argument() -> None:
    with pytest.raises(ValueError, match="target_logits"):
        accept(
            torch.zeros(3, V), None, DraftBlock.skipped(1, 2, "cpu"), RaggedRows.of([0], "cpu"), torch.ones(1).bool()
        )
