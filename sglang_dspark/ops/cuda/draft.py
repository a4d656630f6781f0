"""The sequential loops: γ tokens a request from its candidates, or from the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda.candidates import MAX_CANDIDATES, select_candidates
from sglang_dspark.ops.cuda.heads import Heads
from sglang_dspark.ops.cuda.launch import (
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
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.noise import Noise

# Candidates of all positions, which a block of the sparse loop keeps in shared memory (163 KB from sm_80 on).
_MAX_KEPT = 12000


@dataclass(frozen=True)
class CudaDraft:
    """Attributes: `tokens` `[B, γ]` int64, `usable` `[B]` int64, `confidence` `[B, γ]` float32 or None, and `q`."""

    tokens: Tensor
    q: SparseQ | DenseQ
    confidence: Tensor | None
    usable: Tensor


def draft_not_covered(
    base_logits: Tensor, hidden: Tensor, head: MarkovHead, confidence_head: ConfidenceHead | None, support: int | None
) -> str:
    """Why the kernels do not take what `draft_block` takes; empty when they do."""
    if not available():
        return missing()
    batch, gamma, _ = base_logits.shape
    weights = [w for w in (head.w1, head.w2, head.joint) if w is not None]
    weights += [confidence_head.weight] if confidence_head is not None else []
    unknown = {t.dtype for t in (base_logits, hidden, *weights)} - set(FLOATS)
    if unknown:
        return f"dtypes {sorted(map(str, unknown))}"
    if batch * gamma > MAX_ROWS:
        return f"more than {MAX_ROWS} rows of base logits"
    if support is None:
        most = _max_dense_rank(head)
        return f"a rank above {most} in dense form" if head.w1.shape[1] > most else ""
    most = min(MAX_CANDIDATES, _MAX_KEPT // gamma)
    return f"a support above {most} with {gamma} positions" if support > most else ""


def _max_dense_rank(head: MarkovHead) -> int:
    return 1024 // head.w2.element_size()


def draft_sparse(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    support: int,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    mask: Tensor | None = None,
) -> CudaDraft:
    """γ tokens per request, each from its position's `support` best base logits. Two launches.

    Args:
        base_logits: `[B, γ, V]`; hidden: `[B, γ, H]`; anchors: `[B]` int64.
        temperatures: `[B]` float32, 0 for argmax; None when every row is.
        top_k: `[B]` int64; top_p: `[B]` float32; mask: `[B, γ, ceil(V / 32)]` int32 bits of allowed tokens.

    Raises:
        ValueError: names the argument, its shape and what was expected.
    """
    gamma, vocab = base_logits.shape[1:]
    if gamma * support > _MAX_KEPT:
        raise ValueError(f"support: expected at most {_MAX_KEPT // gamma} with {gamma} positions, got {support}")
    ids, values, bad = select_candidates(base_logits, support, head)
    return draft_candidates(
        ids, values, bad, vocab, anchors, hidden, head, confidence_head, temperatures, noise, top_k=top_k, top_p=top_p,
        mask=mask,
    )  # fmt: skip


def draft_candidates(
    ids: Tensor,
    values: Tensor,
    bad: Tensor,
    vocab: int,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    *,
    gathered: bool = False,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    mask: Tensor | None = None,
) -> CudaDraft:
    """The loop alone, one launch, over candidates as `select_candidates` returns them; `ids` become q's.

    Args:
        ids: `[B, γ, C]` int32 ascending; values: `[B, γ, C]` float32; bad: `[B, γ]` uint8. Contiguous.
        gathered: `head.w2` is `[B γ C, r]`, a row a candidate, instead of a row a token.

    Further arguments and errors as `draft_sparse`.
    """
    batch, gamma, support = ids.shape
    if gamma * support > _MAX_KEPT:
        raise ValueError(f"ids: expected at most {_MAX_KEPT} candidates of a request, got {tuple(ids.shape)}")
    vector("values", values, tuple(ids.shape), torch.float32, ids)
    vector("bad", bad, (batch, gamma), torch.uint8, ids)
    heads = Heads(head, confidence_head, hidden, ids, vocab, ids.numel() if gathered else vocab)
    tokens = torch.empty((batch, gamma), dtype=torch.int64, device=ids.device)
    usable = torch.empty(batch, dtype=torch.int64, device=ids.device)
    probs = torch.empty((batch, gamma, support), dtype=torch.float32, device=ids.device)
    fields: dict[str, Any] = {}
    if mask is not None:
        address = check("mask", mask, (batch, gamma, (vocab + 31) // 32), (torch.int32,), ids)
        fields = {"mask": address, "mask_batch_stride": mask.stride(0), "mask_position_stride": mask.stride(1)}
    native_module().sparse_loop(
        stream_of(ids),
        **fields, **noise_fields(noise, batch, ids), heads=heads.struct, batch=batch, gamma=gamma,
        candidates=support, gathered=gathered,
        ids=ids.data_ptr(), values=values.data_ptr(), bad=bad.data_ptr(),
        anchors=vector("anchors", anchors, (batch,), torch.int64, ids),
        temperatures=vector("temperatures", temperatures, (batch,), torch.float32, ids),
        top_k=vector("top_k", top_k, (batch,), torch.int64, ids),
        top_p=vector("top_p", top_p, (batch,), torch.float32, ids),
        tokens=tokens.data_ptr(), usable=usable.data_ptr(), probs=probs.data_ptr(),
        confidences=heads.confidence_address(),
    )  # fmt: skip
    return CudaDraft(tokens, SparseQ(ids, probs), heads.confidence, usable)


def draft_dense(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
) -> CudaDraft:
    """γ tokens per request over the whole vocabulary. Arguments and errors as `draft_sparse`; 2 γ + 2 launches."""
    logits = logits_fields("base_logits", base_logits)
    batch, gamma, vocab = base_logits.shape
    native, device = native_module(), base_logits.device
    heads = Heads(head, confidence_head, hidden, base_logits, vocab, vocab)
    rank = head.w1.shape[1]
    if rank > _max_dense_rank(head):
        raise ValueError(f"head.w2: expected rank at most {_max_dense_rank(head)}, got {rank}")
    tokens = torch.empty((batch, gamma), dtype=torch.int64, device=device)
    usable = torch.empty(batch, dtype=torch.int64, device=device)
    latents = torch.empty((batch, gamma, (rank + 3) // 4 * 4), dtype=torch.float32, device=device)
    shifts, log_sums, token_probs = torch.empty((3, batch, gamma), dtype=torch.float32, device=device).unbind()
    q = DenseQ(base_logits, head.w2, head.first_position, latents, shifts, log_sums, token_probs, "cuda")
    blocks = native.dense_loop_blocks(vocab, multiprocessors(device))
    workspace = scratch("dense", native.dense_loop_workspace(batch, gamma, rank, blocks), device)
    native.dense_loop(
        stream_of(tokens),
        **noise_fields(noise, batch, base_logits), heads=heads.struct, batch=batch, gamma=gamma, vocab=vocab,
        rows=dense_rows(q, logits), blocks=blocks, workspace=workspace.data_ptr(),
        anchors=vector("anchors", anchors, (batch,), torch.int64, base_logits),
        temperatures=vector("temperatures", temperatures, (batch,), torch.float32, base_logits),
        tokens=tokens.data_ptr(), usable=usable.data_ptr(), confidences=heads.confidence_address(),
    )  # fmt: skip
    return CudaDraft(tokens, q, heads.confidence, usable)
