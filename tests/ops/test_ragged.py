"""Ragged rows are found by their offsets: what a request gets does not depend on how long its neighbours are."""

from __future__ import annotations

import pytest
import torch
from draft_cases import make_noise

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows

GAMMA, V = 4, 7
# Rows of each request: one more than its draft tokens.
VERIFY = ([2, 5, 1], [2, 2, 5], [1, 1, 1], [5, 5, 5])


@pytest.mark.known_case(12)
@pytest.mark.parametrize("verify", VERIFY, ids=str)
def test_rows_by_counting(verify: list[int]) -> None:
    rows = RaggedRows.of([n - 1 for n in verify], "cpu")
    expected = [(r, k) for r, n in enumerate(verify) for k in range(n)]
    assert list(zip(rows.request.tolist(), rows.offset.tolist(), strict=True)) == expected
    assert rows.start.tolist() == [sum(verify[:r]) for r in range(3)]
    assert (rows.total, rows.longest) == (sum(verify), max(verify) - 1)


@pytest.mark.known_case(12)
@pytest.mark.parametrize("verify", VERIFY, ids=str)
def test_each_request_is_accepted_as_it_would_be_alone(verify: list[int], implementation: str | None) -> None:
    g = torch.Generator().manual_seed(sum(verify))
    tokens = torch.randint(0, V, (3, GAMMA), generator=g)
    q = torch.softmax(torch.randn(3, GAMMA, V, generator=g), dim=-1)
    block = DraftBlock(tokens, SparseQ.full(q), None, torch.full((3,), GAMMA))
    rows, noise, temperatures = RaggedRows.of([n - 1 for n in verify], "cpu"), make_noise(3), torch.ones(3)
    logits = torch.randn(rows.total, V, generator=g)
    whole = accept(logits, block, rows, temperatures, noise, isa=implementation)
    for r, n in enumerate(verify):
        start = int(rows.start[r])
        alone = accept(
            logits[start : start + n],
            DraftBlock(tokens[r : r + 1], SparseQ.full(q[r : r + 1]), None, torch.tensor([GAMMA])),
            RaggedRows.of([n - 1], "cpu"),
            temperatures[r : r + 1],
            Noise(noise.seed, noise.streams[r : r + 1], noise.rounds[r : r + 1]),
            isa=implementation,
        )
        count = int(whole.counts[r])
        assert count == int(alone.counts)
        assert whole.tokens[r, :count].tolist() == alone.tokens[0, :count].tolist()


@pytest.mark.known_case(12)
def test_a_padded_total_is_refused() -> None:
    rows, block = RaggedRows.of([1, 4, 0], "cpu"), DraftBlock.skipped(3, GAMMA, "cpu")
    with pytest.raises(ValueError, match=r"target_logits: expected \[8, V\], got \(16, 7\)"):
        accept(torch.zeros(16, V), block, rows, None)
