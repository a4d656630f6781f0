"""The sequential part of a draft whose lm_head has rows for a part of the target's vocabulary only.

Candidates are chosen among the columns there are and named by the target's tokens from then on: the loop, q and what
follows do not know of the reduction. q is 0 for every token without a column, so verification stays lossless.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_dspark.ops.checks import check_draft, rows_contiguous
from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, DraftFilter, MarkovHead
from sglang_dspark.ops.draft_candidates import Candidates, best_candidates, draft_candidates
from sglang_dspark.ops.noise import Noise


def draft_block_reduced(
    base_logits: Tensor,
    vocabulary: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise | None = None,
    *,
    support: int | None = None,
    filters: DraftFilter | None = None,
    isa: str | None = None,
) -> DraftBlock:
    """`draft_block` where every token outside `vocabulary` has a base logit of -inf.

    Args:
        base_logits: `[B, γ, Vd]`, a column for each token of `vocabulary`.
        vocabulary: `[Vd]` int64, ascending tokens of the target.
        head: `w1` and `w2` have a row for every token of the target, `[V, r]`.
        support: C, clipped to Vd; None: all of `vocabulary`. q is sparse in either case.

    All else, the result included, as in `draft_block`: anchors, tokens, q, noise and masks are the target's.

    Raises:
        ValueError: names the argument, what it is and what was expected, before anything runs.
    """
    if base_logits.ndim != 3 or tuple(vocabulary.shape) != (base_logits.shape[2],):
        raise ValueError(
            f"vocabulary: expected a token for each column of base_logits {tuple(base_logits.shape)}, got "
            f"{tuple(vocabulary.shape)}"
        )
    size, vocab_size = len(vocabulary), head.w2.shape[0]
    support = size if support is None else support
    check_draft(
        base_logits, anchors, hidden, head, confidence_head, temperatures, noise, support, filters, vocab_size,
    )  # fmt: skip
    if noise is None:
        zeros = torch.zeros(len(anchors), dtype=torch.int64, device=anchors.device)
        noise = Noise(0, zeros, zeros)
    columns, values = best_candidates(rows_contiguous(base_logits), min(support, size))
    ids = vocabulary[columns.long()].to(torch.int32)
    return draft_candidates(
        Candidates(ids, values, None), vocab_size, anchors, hidden, head, confidence_head, temperatures, noise,
        filters or DraftFilter(), isa,
    )  # fmt: skip
