"""A reduced draft vocabulary is the whole one with everything else at -inf, and verification stays lossless."""

from __future__ import annotations

import pytest
import scipy.stats
import sharded_cases
import torch
from draft_cases import make_head, make_noise

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.draft_block import draft_block
from sglang_dspark.ops.draft_reduced import draft_block_reduced
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows

CASES = [c for c in sharded_cases.CASES if not c.spoil and c.support <= c.vocab]


def subset(vocab: int, size: int) -> torch.Tensor:
    return torch.randperm(vocab, generator=torch.Generator().manual_seed(5))[:size].sort().values


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equals_the_whole_vocabulary_with_the_rest_at_minus_infinity(
    case: sharded_cases.Case, dense: bool, implementation: str | None
) -> None:
    tokens = subset(case.vocab, max(case.support, 2 * case.vocab // 3))
    base = case.base()
    whole = torch.full_like(base, float("-inf"))
    whole[..., tokens] = base[..., tokens]
    arguments, support = case.arguments(), len(tokens) if dense else case.support
    options = {"filters": case.filter(), "isa": implementation}
    expected = draft_block(whole, *arguments, support=support, **options)
    ours = draft_block_reduced(base[..., tokens], tokens, *arguments, support=None if dense else support, **options)
    assert ours.tokens.tolist() == expected.tokens.tolist()
    assert ours.usable.tolist() == expected.usable.tolist()
    assert torch.equal(ours.confidence, expected.confidence)
    if expected.q is not None:
        assert torch.equal(ours.q.ids, expected.q.ids)
        assert torch.equal(ours.q.probs, expected.q.probs)


def test_an_undefined_column_ends_the_usable_prefix() -> None:
    base = torch.randn(2, 3, 5)
    base[0, 1, 2], base[1, 0, 0] = float("nan"), float("inf")
    head = make_head("vanilla", 9, 4, 6)
    arguments = (torch.tensor([1, 8]), torch.randn(2, 3, 6), head, None, None)
    assert draft_block_reduced(base, subset(9, 5), *arguments).usable.tolist() == [1, 0]


def test_the_column_count_is_checked() -> None:
    arguments = (torch.tensor([1]), torch.randn(1, 3, 6), make_head("vanilla", 9, 4, 6), None, None)
    with pytest.raises(ValueError, match="vocabulary: expected a token for each column"):
        draft_block_reduced(torch.randn(1, 3, 5), subset(9, 4), *arguments)


@pytest.mark.parametrize("coupled", [False, True])
def test_the_first_token_follows_the_target(coupled: bool) -> None:
    """Of 20,000 requests; the target favours tokens that the draft has not."""
    batch, vocab, gamma = 20_000, 8, 2
    tokens = torch.tensor([1, 2, 5, 6])
    generator = torch.Generator().manual_seed(0)
    head = make_head("vanilla", vocab, 3, 4)
    base = torch.randn(gamma, len(tokens), generator=generator).expand(batch, -1, -1)
    hidden, ones = torch.zeros(batch, gamma, 4), torch.ones(batch)
    noise = make_noise(batch)
    if coupled:
        noise = Noise(noise.seed, torch.arange(batch) * 77 + 3, noise.rounds + 9, torch.ones(batch, dtype=torch.bool))
    block = draft_block_reduced(base, tokens, torch.zeros(batch, dtype=torch.int64), hidden, head, None, ones, noise)
    logits = torch.tensor([0.5, -1.0, 0.3, 1.0, -0.4, 0.8, -2.0, 0.0])
    rows = RaggedRows.of([gamma] * batch, "cpu")
    outcome = accept(logits.expand(rows.total, -1).contiguous(), block, rows, ones, noise)
    counts = torch.bincount(outcome.tokens[:, 0], minlength=vocab).double()
    expected = logits.double().softmax(-1) * batch
    assert scipy.stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3
    assert (outcome.counts > 1).any()
    if not coupled:  # nothing is accepted that was not drafted, and everything drafted has a column
        assert set(block.tokens.flatten().tolist()) <= set(tokens.tolist())
