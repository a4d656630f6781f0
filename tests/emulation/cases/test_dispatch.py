"""`draft_block` and `accept` sent to the kernels by the code that serves a GPU, against the CPU extension."""

from __future__ import annotations

from typing import Any

import emulated
import pytest
import torch
from torch import Tensor

from sglang_dspark.ops import cuda
from sglang_dspark.ops.accept import Accepted, accept
from sglang_dspark.ops.cuda import launch
from sglang_dspark.ops.draft_block import DraftBlock, DraftFilter, draft_block
from sglang_dspark.ops.draft_q import DenseQ, SparseQ
from sglang_dspark.ops.ragged import RaggedRows

BATCH, GAMMA, VOCAB, RANK, HIDDEN = 3, 4, 1009, 24, 16


def arguments(kind: str = "vanilla", greedy: bool = False) -> list[Any]:
    g = torch.Generator().manual_seed(1)
    confidence = emulated.make_confidence(HIDDEN, RANK)
    if kind == "gated":  # a bias is read by the kernel; both forms of a missing one exist
        confidence = type(confidence)(confidence.weight, None, True)
    return [
        emulated.make_logits(BATCH, GAMMA, VOCAB, torch.bfloat16),
        torch.randint(0, VOCAB, (BATCH,), generator=g, dtype=torch.int32),
        torch.randn(BATCH, GAMMA, 2 * HIDDEN, generator=g)[..., ::2],
        emulated.make_head(kind, VOCAB, RANK, HIDDEN, torch.bfloat16),
        confidence,
        None if greedy else torch.tensor([1.0, 0.0, 0.7]),
        None if greedy else emulated.make_noise(BATCH),
    ]


def on_the_kernels(*args: Any, **kwargs: Any) -> DraftBlock:
    with emulated.dispatching():
        return draft_block(*args, **kwargs)


def target_of(block: DraftBlock, lengths: list[int]) -> tuple[Tensor, RaggedRows]:
    """Rows whose largest logit is often the drafted token."""
    rows = RaggedRows.of(lengths, "cpu")
    logits = torch.randn(rows.total, VOCAB, generator=torch.Generator().manual_seed(2))
    drafted = block.tokens[rows.request, rows.offset.clamp_max(GAMMA - 1)]
    return logits.scatter_(1, drafted.unsqueeze(1), 7.0), rows


def same(ours: Accepted, theirs: Accepted) -> None:
    assert ours.counts.tolist() == theirs.counts.tolist()
    assert ours.last.tolist() == theirs.last.tolist()
    for row, other, count in zip(ours.tokens.tolist(), theirs.tokens.tolist(), ours.counts.tolist(), strict=True):
        assert row[:count] == other[:count]


@pytest.mark.parametrize("support", [48, None])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_round_is_the_same_token_for_token(kind: str, support: int | None) -> None:
    args = arguments(kind)
    ours, theirs = on_the_kernels(*args, support=support), draft_block(*args, support=support)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.usable.tolist() == theirs.usable.tolist()
    torch.testing.assert_close(ours.confidence, theirs.confidence, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.q.of_tokens(ours.tokens), theirs.q.of_tokens(ours.tokens), rtol=1e-3, atol=1e-6)
    logits, rows = target_of(ours, [GAMMA, 2, 0])
    with emulated.dispatching():
        out = accept(logits, ours, rows, args[5], args[6])
    same(out, accept(logits, theirs, rows, args[5], args[6]))
    # Zeros past the count are the kernels' own.
    past = torch.arange(GAMMA + 1) >= out.counts.unsqueeze(1)
    assert not out.tokens[past].any()


def test_greedy_batches_leave_no_q() -> None:
    args = arguments(greedy=True)
    ours = on_the_kernels(*args, support=48)
    assert ours.q is None
    assert ours.tokens.tolist() == draft_block(*args, support=48).tokens.tolist()
    logits, rows = target_of(ours, [1, GAMMA, 3])
    with emulated.dispatching():
        out = accept(logits, ours, rows, None)
    same(out, accept(logits, ours, rows, None))
    assert out.counts.sum() > BATCH


def test_filters_given_probabilities_and_wide_strides() -> None:
    args = arguments()
    filters = DraftFilter(top_k=torch.tensor([5, 3, 9]), top_p=torch.tensor([1.0, 0.5, 0.9]))
    ours = on_the_kernels(*args, support=48, filters=filters)
    theirs = draft_block(*args, support=48, filters=filters)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    logits, rows = target_of(ours, [2, 2, GAMMA])
    p = torch.softmax(logits.double(), dim=-1).float()
    wide = torch.full((rows.total, 2 * VOCAB), float("nan"))
    wide[:, ::2] = p
    with emulated.dispatching():
        out = accept(logits, ours, rows, args[5], args[6], wide[:, ::2])
    same(out, accept(logits, ours, rows, args[5], args[6], p))


def test_a_support_beyond_the_vocabulary_and_a_skipped_draft() -> None:
    args = arguments()
    ours = on_the_kernels(*args, support=VOCAB + 5)
    assert ours.q.ids.shape[2] == VOCAB
    assert ours.tokens.tolist() == draft_block(*args, support=VOCAB + 5).tokens.tolist()
    skipped = DraftBlock.skipped(BATCH, GAMMA, "cpu")
    logits, rows = target_of(skipped, [0, 0, 0])
    with emulated.dispatching():
        same(accept(logits, skipped, rows, args[5], args[6]), accept(logits, skipped, rows, args[5], args[6]))


def test_what_the_kernels_do_not_cover_runs_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    args = arguments()
    args[0] = args[0].double()
    ours = on_the_kernels(*args, support=48)
    assert ours.tokens.tolist() == draft_block(*args, support=48).tokens.tolist()
    assert "draft_block runs in plain torch" in caplog.text
    assert "float64" in caplog.text
    args = arguments()
    assert cuda.draft_not_covered(args[0], args[2], args[3], None, 4000) == "a support above 2048 with 4 positions"
    logits, rows = target_of(ours, [1, 1, 1])
    with emulated.dispatching():
        same(accept(logits.double(), ours, rows, None), accept(logits.double(), ours, rows, None))
    assert "accept runs in plain torch" in caplog.text


def test_without_the_module_torch_serves_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_load", lambda: None)
    args = arguments()
    ours = on_the_kernels(*args, support=48)
    assert isinstance(ours.q, SparseQ)
    assert "sglang_dspark._CUDA is not built" in caplog.text
    with pytest.raises(RuntimeError, match="nvcc"):
        cuda.select_candidates(args[0], 4)


def test_a_dense_q_is_recomputed_only_where_it_was_drawn() -> None:
    args = arguments()
    ours, theirs = on_the_kernels(*args), draft_block(*args)
    assert isinstance(ours.q, DenseQ)
    logits, rows = target_of(ours, [1, 1, 1])
    with pytest.raises(ValueError, match="drawn by the CUDA kernels"):
        accept(logits, ours, rows, args[5], args[6])
    with emulated.dispatching(), pytest.raises(ValueError, match="drawn by the CPU kernels"):
        accept(logits, theirs, rows, args[5], args[6])
