"""The C best base logits of every position, all positions at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda.launch import (
    FLOATS,
    MAX_ROWS,
    available,
    missing,
    multiprocessors,
    native_module,
    scratch,
    stream_of,
)  # fmt: skip
from sglang_dspark.ops.cuda.rows import logits_fields
from sglang_dspark.ops.markov import MarkovHead

MAX_CANDIDATES = 2048
# Of what two such matrices leave of an L2 of 50 to 60 MB, half.
_PREFETCHED_BYTES = 16 << 20


def select_not_covered(base_logits: Tensor, support: int) -> str:
    """Why the kernel does not take these logits; empty when it does."""
    if not available():
        return missing()
    if base_logits.dtype not in FLOATS:
        return f"logits of {base_logits.dtype}"
    if base_logits.shape[0] * base_logits.shape[1] > MAX_ROWS:
        return f"more than {MAX_ROWS} rows of base logits"
    return f"a support above {MAX_CANDIDATES}" if support > MAX_CANDIDATES else ""


def select_candidates(
    base_logits: Tensor, support: int, head: MarkovHead | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The `support` largest base logits of every position, the lower token of equal ones.

    Args:
        base_logits: `[B, γ, V]`, float32, bfloat16 or float16.
        support: C, 1 to min(V, 2048).
        head: its rows for the candidates are moved to L2 where all of them fit.

    Returns:
        ids `[B, γ, C]` int32 ascending, values `[B, γ, C]` float32, bad `[B, γ]` uint8 (1: cannot be drawn from).

    Raises:
        ValueError: more than 16384 rows, or a support that is not 1 to min(V, 2048).
    """
    fields: dict[str, Any] = logits_fields("base_logits", base_logits)
    batch, gamma, vocab = base_logits.shape
    if batch * gamma > MAX_ROWS:
        raise ValueError(f"base_logits: expected at most {MAX_ROWS} rows, got {tuple(base_logits.shape)}")
    if not 1 <= support <= min(vocab, MAX_CANDIDATES):
        raise ValueError(f"support: expected 1 to {min(vocab, MAX_CANDIDATES)}, got {support}")
    native, device = native_module(), base_logits.device
    slices = native.select_candidates_slices(batch * gamma, vocab, multiprocessors(device))
    workspace = scratch("select", native.select_candidates_workspace(batch * gamma, slices, support), device)
    ids = torch.empty((batch, gamma, support), dtype=torch.int32, device=device)
    values = torch.empty((batch, gamma, support), dtype=torch.float32, device=device)
    bad = torch.empty((batch, gamma), dtype=torch.uint8, device=device)
    if head is not None and head.w1.is_contiguous() and head.w2.is_contiguous() and head.w1.dtype == head.w2.dtype:
        row = head.w1.shape[1] * head.w1.element_size()
        if ids.numel() * row <= _PREFETCHED_BYTES:
            fields |= {"prefetch_w1": head.w1.data_ptr(), "prefetch_w2": head.w2.data_ptr(), "prefetch_row_bytes": row}
    native.select_candidates(
        stream_of(ids),
        **fields, batch=batch, gamma=gamma, vocab=vocab, candidates=support, slices=slices,
        workspace=workspace.data_ptr(), ids=ids.data_ptr(), values=values.data_ptr(), bad=bad.data_ptr(),
    )  # fmt: skip
    return ids, values, bad
