"""Checks on a GPU that the functions the decoding round calls reach the kernels; part of `gpu_check.py`.

For every kind of head and both forms of q: `draft_block` and `accept` on the GPU equal the same calls on the CPU token
for token, wait for nothing, and give the same when captured into a CUDA graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.accept import Accepted, accept
from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, MarkovHead, draft_block
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows

BATCH, GAMMA, VOCAB, RANK, HIDDEN, SUPPORT = 9, 7, 5003, 64, 48, 96


def check_dispatch(require: Callable[[bool, str], None]) -> None:
    """Calls `require(holds, what)` for each property."""
    for kind in ("vanilla", "gated", "rnn"):
        for support in (SUPPORT, None):
            _check_one(kind, support, require)


def _check_one(kind: str, support: int | None, require: Callable[[bool, str], None]) -> None:
    what = f"dispatch, {kind} head, support {support}"
    arguments = _arguments(kind)
    theirs = draft_block(*arguments, support=support)
    lengths = [r % (GAMMA + 1) for r in range(BATCH)]
    logits = _target(theirs, lengths)
    # The round's own types: bfloat16 weights stay, the accept reads float32 rows.
    on_gpu = [_moved(a) for a in arguments]
    logits_on_gpu = logits.cuda()

    def a_round() -> tuple[DraftBlock, Accepted]:
        block = draft_block(*on_gpu, support=support)
        return block, accept(logits_on_gpu, block, rows, on_gpu[5], on_gpu[6])

    rows = RaggedRows.of(lengths, "cuda")
    a_round()  # workspaces
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = RaggedRows.of(lengths, "cuda")
        ours, accepted = a_round()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = accept(logits, theirs, RaggedRows.of(lengths, "cpu"), arguments[5], arguments[6])
    require(ours.tokens.is_cuda and ours.tokens.tolist() == theirs.tokens.tolist(), f"{what}: tokens")
    require(ours.usable.tolist() == theirs.usable.tolist(), f"{what}: usable")
    require(accepted.counts.tolist() == expected.counts.tolist(), f"{what}: counts of the accept")
    require(_emitted(accepted) == _emitted(expected), f"{what}: tokens of the accept")
    assert ours.confidence is not None
    assert theirs.confidence is not None
    torch.testing.assert_close(ours.confidence.cpu(), theirs.confidence, rtol=1e-3, atol=1e-4)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_accept = a_round()
    graph.replay()
    torch.cuda.synchronize()
    require(torch.equal(captured.tokens, ours.tokens), f"{what}: tokens of a replayed graph")
    require(_emitted(captured_accept) == _emitted(accepted), f"{what}: the accept of a replayed graph")


def _arguments(kind: str) -> list[Any]:
    g = torch.Generator().manual_seed(11)
    rows = {"vanilla": 0, "gated": RANK, "rnn": 3 * RANK}[kind]
    columns = {"vanilla": 0, "gated": HIDDEN + RANK, "rnn": HIDDEN + 2 * RANK}[kind]
    w1, w2 = (torch.randn(VOCAB, RANK, generator=g).bfloat16() for _ in range(2))
    joint = (torch.randn(rows, columns, generator=g) * 0.1).bfloat16() if rows else None
    head = MarkovHead(kind, w1, (w2.float() * 0.2).bfloat16(), joint)  # type: ignore[arg-type]
    confidence = ConfidenceHead(torch.randn(1, HIDDEN + RANK, generator=g) * 0.1, torch.tensor([0.2]), True)
    return [
        (torch.randn(BATCH, GAMMA, VOCAB, generator=g) * 3).bfloat16(),
        torch.randint(0, VOCAB, (BATCH,), generator=g),
        torch.randn(BATCH, GAMMA, HIDDEN, generator=g).bfloat16(),
        head,
        confidence,
        torch.tensor([(0.0, 0.7, 1.0)[r % 3] for r in range(BATCH)]),
        Noise(5, torch.arange(BATCH), torch.full((BATCH,), 3)),
    ]


def _target(block: DraftBlock, lengths: list[int]) -> Tensor:
    """Rows whose largest logit is the drafted token, so that some positions pass."""
    rows = RaggedRows.of(lengths, "cpu")
    logits = torch.randn(rows.total, VOCAB, generator=torch.Generator().manual_seed(12)) * 2
    drafted = block.tokens[rows.request, rows.offset.clamp_max(GAMMA - 1)]
    return logits.scatter_(1, drafted.unsqueeze(1), 10.0)


def _emitted(accepted: Accepted) -> list[list[int]]:
    rows = zip(accepted.tokens.tolist(), accepted.counts.tolist(), strict=True)
    return [tokens[:count] for tokens, count in rows]


def _moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cuda()
    if is_dataclass(value):
        return type(value)(**{f.name: _moved(getattr(value, f.name)) for f in fields(value)})  # type: ignore[misc]
    return value
