"""The accept over ragged rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda.launch import (
    DTYPES,
    FLOATS,
    MAX_ROWS,
    available,
    check,
    missing,
    multiprocessors,
    native_module,
    noise_fields,
    scratch,
    stream_of,
    vector,
)  # fmt: skip
from sglang_dspark.ops.cuda.rows import dense_rows, logits_fields
from sglang_dspark.ops.draft_q import DenseQ, SparseQ
from sglang_dspark.ops.noise import Noise

# Shared memory of a block from sm_80 on, less what is declared statically.
_SHARED_BYTES = 160 << 10


def accept_not_covered(target_logits: Tensor, q: SparseQ | DenseQ | None, requests: int) -> str:
    """Why the kernels do not take what `ops.accept.accept` takes; empty when they do."""
    if not available():
        return missing()
    if target_logits.dtype not in FLOATS:
        return f"target logits of {target_logits.dtype}"
    shared = 4096 + 32 * 256 + target_logits.shape[1] // 128  # a piece's weights, positions, sums of pieces
    if isinstance(q, SparseQ) and 12 * q.ids.shape[2] + shared > _SHARED_BYTES:
        return f"a q of {q.ids.shape[2]} candidates"
    return f"more than {MAX_ROWS} requests" if requests > MAX_ROWS else ""


def accept(
    target_logits: Tensor,
    probabilities: Tensor | None,
    tokens: Tensor,
    usable: Tensor,
    q: SparseQ | DenseQ | None,
    start: Tensor,
    lengths: Tensor,
    temperatures: Tensor | None,
    noise: Noise,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept over ragged rows with the coupled cut; one launch, three for a dense q.

    Args:
        target_logits: `[M, V]`; row `start[r] + k` is the target's for position k + 1 of request r.
        probabilities: `[M, V]` float32, p of sampled rows (after top-k, top-p); None: softmax(logits / T).
        tokens: `[B, γ]` int64; usable: `[B]` int64; start, lengths: `[B]` int64, start ascending. All on the device:
            their values are not checked.
        q: as the draft left it, ids ascending; None when nothing was sampled.

    Returns:
        tokens `[B, γ + 1]` int64, zeros past the count; counts `[B]` int64 in 1..ℓ+1; last `[B]` int64.
    """
    (batch, gamma), (rows, vocab) = tokens.shape, target_logits.shape
    if batch > MAX_ROWS:
        raise ValueError(f"tokens: expected at most {MAX_ROWS} requests, got {tuple(tokens.shape)}")
    native, device = native_module(), target_logits.device
    fields: dict[str, Any] = {}
    if probabilities is not None:
        address = check("probabilities", probabilities, (rows, vocab), (torch.float32,), target_logits)
        fields = {"probabilities": address, "probabilities_stride": probabilities.stride(0)}
    if isinstance(q, SparseQ):
        fields |= {
            "form": 1, "candidates": q.ids.shape[2],
            "ids": vector("q.ids", q.ids, (batch, gamma, q.ids.shape[2]), torch.int32, target_logits),
            "probs": vector("q.probs", q.probs, tuple(q.ids.shape), torch.float32, target_logits),
        }  # fmt: skip
    elif isinstance(q, DenseQ):
        fields |= {"form": 2, "dense": dense_rows(q, logits_fields("q.base_logits", q.base_logits))}
    slices = native.accept_slices(rows, vocab, multiprocessors(device))
    size = native.accept_workspace(batch, gamma, rows, vocab, isinstance(q, DenseQ))
    out = torch.empty((batch, gamma + 1), dtype=torch.int64, device=device)
    counts = torch.empty(batch, dtype=torch.int64, device=device)
    last = torch.empty(batch, dtype=torch.int64, device=device)
    native.accept(
        stream_of(out),
        **fields, **noise_fields(noise, batch, target_logits), batch=batch, gamma=gamma, vocab=vocab, rows=rows,
        slices=slices,
        logits=check("target_logits", target_logits, (None, None), FLOATS, target_logits),
        logits_dtype=DTYPES[target_logits.dtype], logits_stride=target_logits.stride(0),
        start=vector("start", start, (batch,), torch.int64, target_logits),
        lengths=vector("lengths", lengths, (batch,), torch.int64, target_logits),
        drafted=vector("tokens", tokens, (batch, gamma), torch.int64, target_logits),
        usable=vector("usable", usable, (batch,), torch.int64, target_logits),
        temperatures=vector("temperatures", temperatures, (batch,), torch.float32, target_logits),
        workspace=scratch("accept", size, device).data_ptr(),
        tokens=out.data_ptr(), counts=counts.data_ptr(), last=last.data_ptr(),
    )  # fmt: skip
    return out, counts, last
