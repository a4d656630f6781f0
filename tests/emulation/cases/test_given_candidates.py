"""The loop over candidates chosen elsewhere (tensor parallelism) is the loop that selects them, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import emulated
import pytest
import torch

from sglang_dspark.ops import cuda
from sglang_dspark.ops.draft_block import DraftFilter, draft_block
from sglang_dspark.ops.draft_candidates import Candidates, draft_candidates

BATCH, GAMMA, VOCAB, HIDDEN, SUPPORT = 3, 4, 1009, 16, 48


@pytest.mark.parametrize(("rank", "dtype"), [(24, torch.bfloat16), (20, torch.bfloat16), (256, torch.float32)])
@pytest.mark.parametrize("gathered", [False, True])
def test_equals_the_loop_that_selects(rank: int, dtype: torch.dtype, gathered: bool) -> None:
    g = torch.Generator().manual_seed(1)
    base = emulated.make_logits(BATCH, GAMMA, VOCAB, torch.float32)
    base[1, 2, 100] = float("nan")
    head = emulated.make_head("vanilla", VOCAB, rank, HIDDEN, dtype)
    arguments = [
        torch.randint(0, VOCAB, (BATCH,), generator=g),
        torch.randn(BATCH, GAMMA, HIDDEN, generator=g),
        head,
        emulated.make_confidence(HIDDEN, rank),
        torch.tensor([1.0, 0.7, 0.0]),
        emulated.make_noise(BATCH),
    ]
    filters = DraftFilter(top_k=torch.tensor([5, 40, 3]))
    ids, values, bad = cuda.select_candidates(base, SUPPORT)
    ids[1, 2] = torch.arange(SUPPORT)
    values = torch.where(bad.bool().unsqueeze(-1), float("nan"), values)
    rows = head.w2[ids.long()] if gathered else None
    if gathered:  # what is not read may be anything
        arguments[2] = replace(head, w2=torch.full_like(head.w2, float("nan")))
    with emulated.dispatching():
        chosen = emulated.in_every_order(
            lambda: draft_candidates(Candidates(ids, values, rows), VOCAB, *arguments, filters)
        )
        arguments[2] = head
        whole = draft_block(base, *arguments, support=SUPPORT, filters=filters)
    assert whole.usable.tolist() == [GAMMA, 2, GAMMA]
    for ours, theirs in zip(emulated.flatten(chosen), emulated.flatten(whole), strict=True):
        assert torch.equal(ours, theirs)
