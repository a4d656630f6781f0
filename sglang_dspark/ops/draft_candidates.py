"""The sequential loop over candidates that were chosen before, by this process or by a group of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sglang_dspark.ops import cuda
from sglang_dspark.ops.checks import contiguous_noise, rows_contiguous
from sglang_dspark.ops.draft_block import (
    ConfidenceHead,
    DraftBlock,
    DraftFilter,
    MarkovHead,
    native_arguments,
    native_covers,
)  # fmt: skip
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.draft_torch import draft_block_torch, drawable, select_candidates
from sglang_dspark.ops.extension import extension, warn_missing, warn_torch
from sglang_dspark.ops.noise import Noise


@dataclass(frozen=True)
class Candidates:
    """The C best base logits of every position.

    Attributes:
        ids: `[B, γ, C]` int32, ascending in each row.
        values: `[B, γ, C]` float32, their base logits; a NaN among them: the position cannot be drawn from.
        rows: `[B, γ, C, r]`, their rows of W2; None where the head's own W2 has them all.
    """

    ids: Tensor
    values: Tensor
    rows: Tensor | None


def best_candidates(base_logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` largest base logits of every position, the lower column of equal ones.

    Args:
        base_logits: `[B, γ, W]`, W of at least `size`.

    Returns:
        columns `[B, γ, C]` int32 ascending, values `[B, γ, C]` float32, all NaN where a base logit is NaN or +inf.
    """
    largest = base_logits.amax(dim=-1, keepdim=True).float()  # NaN if there is one
    if base_logits.device.type == cuda.device_type() and not cuda.select_not_covered(base_logits, size):
        ids, values, _ = cuda.select_candidates(base_logits, size)
    else:
        wide = torch.where(largest < float("inf"), base_logits.float(), 0.0)
        ids = select_candidates(wide, size)
        values = wide.gather(2, ids)
    # A row that is undefined, or excluded as a whole, has no best entries: its first columns stand for them.
    ids = torch.where(largest.isfinite(), ids, torch.arange(size, device=ids.device)).to(torch.int32)
    nothing = torch.where(largest < float("inf"), float("-inf"), float("nan"))
    return ids, torch.where(largest.isfinite(), values, nothing)


def draft_candidates(
    candidates: Candidates,
    vocab_size: int,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    filters: DraftFilter,
    isa: str | None = None,
) -> DraftBlock:
    """What `draft_block` draws with these candidates, bit for bit; arguments as there, already checked."""
    ids, values, rows = candidates.ids, candidates.values.contiguous(), candidates.rows
    gathered = rows is not None
    if rows is not None:
        head = replace(head, w2=rows.reshape(-1, rows.shape[-1]))
    support = ids.shape[2]
    native = extension()
    if values.device.type == cuda.device_type():
        reason = noise.not_on_cuda or cuda.draft_not_covered(values, hidden, head, confidence_head, support)
        if not reason:
            draft = cuda.draft_candidates(
                ids.clone(memory_format=torch.contiguous_format), values, (~drawable(values)).to(torch.uint8),
                vocab_size, anchors.long().contiguous(), rows_contiguous(hidden), head, confidence_head,
                None if temperatures is None else temperatures.contiguous(), contiguous_noise(noise),
                gathered=gathered, top_k=filters.top_k, top_p=filters.top_p, mask=filters.mask,
            )  # fmt: skip
            return DraftBlock(draft.tokens, None if temperatures is None else draft.q, draft.confidence, draft.usable)
        warn_torch("draft_candidates", reason)
    if native is None or not native_covers(values, hidden, head, confidence_head):
        if native is None and values.device.type == "cpu":
            warn_missing("draft_candidates")
        return DraftBlock(
            *draft_block_torch(
                values, anchors, hidden, head, confidence_head, temperatures, noise, support, filters.top_k,
                filters.top_p, filters.mask, rows, ids.long(),
            )
        )  # fmt: skip
    batch_size, gamma = ids.shape[:2]
    tokens = torch.empty((batch_size, gamma), dtype=torch.int64)
    usable = torch.empty(batch_size, dtype=torch.int64)
    confidence = None if confidence_head is None else torch.empty((batch_size, gamma))
    ids, probs = ids.clone(memory_format=torch.contiguous_format), torch.empty(values.shape)
    native.draft_sparse(
        *native_arguments(values, anchors, hidden, head, confidence_head, temperatures, noise), filters.top_k,
        filters.top_p, filters.mask, tokens, usable, confidence, ids, probs, vocab_size, gathered, isa or "",
        torch.get_num_threads(),
    )  # fmt: skip
    return DraftBlock(tokens, None if temperatures is None else SparseQ(ids, probs), confidence, usable)
