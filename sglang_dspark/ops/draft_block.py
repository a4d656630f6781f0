"""The sequential part of the draft: γ tokens drawn left to right from base logits (algorithm, step 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.ops import cuda
from sglang_dspark.ops.checks import check_draft, contiguous_noise, rows_contiguous
from sglang_dspark.ops.draft_q import DenseQ, DraftQ, SparseQ
from sglang_dspark.ops.draft_torch import draft_block_torch
from sglang_dspark.ops.extension import extension, warn_missing, warn_torch
from sglang_dspark.ops.markov import Activation, ConfidenceHead, HeadKind, MarkovHead
from sglang_dspark.ops.noise import Noise

__all__ = [
    "Activation", "ConfidenceHead", "DraftBlock", "DraftFilter", "HeadKind", "MarkovHead", "draft_block",
]  # fmt: skip

_LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHT_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class DraftFilter:
    """Restricts q of each request to part of its candidates; None: not at all. Any choice is lossless.

    Attributes:
        top_k: `[B]` int64, at least 1; the candidates with the largest probabilities, lowest ids on ties.
        top_p: `[B]` float32 in [0, 1]; judged on the sorted candidates before `top_k` cuts them, the first always kept.
        mask: `[B, γ, ceil(V / 32)]` int32; bit `t % 32` of word `t // 32` allows token t. Where it leaves no candidate,
            the usable prefix ends.
    """

    top_k: Tensor | None = None
    top_p: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class DraftBlock:
    """What one round's draft leaves for the scheduler and the accept.

    Attributes:
        tokens: `[B, γ]` int64; 0 from the first position that is not usable.
        q: the distributions `tokens` were drawn from; None when no row was sampled.
        confidence: `[B, γ]` float32, 0 from the first position that is not usable; None without a confidence head.
        usable: `[B]` int64, leading positions that could be drawn. What lies past them must not be verified.
    """

    tokens: Tensor
    q: DraftQ | None
    confidence: Tensor | None
    usable: Tensor

    @classmethod
    def skipped(cls, batch_size: int, gamma: int, device: torch.device | str) -> DraftBlock:
        """The block of a round that did not run its draft: no position of it may be verified."""
        tokens = torch.zeros((batch_size, gamma), dtype=torch.int64, device=device)
        return cls(tokens, None, None, torch.zeros(batch_size, dtype=torch.int64, device=device))


def draft_block(
    base_logits: Tensor,
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
    """Draw `x_k ~ softmax((U_k + b_k) / T)` for k = 1..γ, each bias depending on the token before (report, section 3).

    A position can be drawn when its base logits and its corrected logits hold no NaN or +inf and something above -inf.

    Args:
        base_logits: `[B, γ, V]` float32, bfloat16 or float16, any strides over B and γ: `U_k = lm_head(h_k)`. γ at most
            255, V at most 2^23. In dense form the accept reads it again.
        anchors: `[B]` integers in [0, V), the last token the target emitted.
        hidden: `[B, γ, H]`, the backbone's hidden states `h_k`.
        temperatures: `[B]` float32, 0 for a row decoded by argmax; None when every row is.
        noise: whose randomness; may be None only when `temperatures` is.
        support: C, q is the softmax over the C best base logits of each position (lowest ids on ties), clipped to V.
            None: over the whole vocabulary.
        filters: further restriction of q, sparse form only.
        isa: "avx512", "avx2" or "scalar" instead of the best there is; read on a CPU only.

    On a GPU everything is enqueued on the current stream and nothing waits for it, so values of tensors (anchors,
    temperatures, filters) are checked on a CPU only; shapes and dtypes are checked everywhere.

    Raises:
        ValueError: names the argument, what it is and what was expected, before anything runs.
    """
    check_draft(base_logits, anchors, hidden, head, confidence_head, temperatures, noise, support, filters)
    batch_size, gamma, vocab_size = base_logits.shape
    if support is not None:
        support = min(support, vocab_size)
    if noise is None:
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=base_logits.device)
        noise = Noise(0, zeros, zeros)
    if filters is None:
        filters = DraftFilter()
    if base_logits.device.type == cuda.device_type():
        reason = noise.not_on_cuda or cuda.draft_not_covered(base_logits, hidden, head, confidence_head, support)
        if not reason:
            return _on_cuda(base_logits, anchors, hidden, head, confidence_head, temperatures, noise, support, filters)
        warn_torch("draft_block", reason)
    native = extension()
    if native is None or not native_covers(base_logits, hidden, head, confidence_head):
        if native is None and base_logits.device.type == "cpu":
            warn_missing("draft_block")
        return DraftBlock(
            *draft_block_torch(
                base_logits, anchors, hidden, head, confidence_head, temperatures, noise, support, filters.top_k,
                filters.top_p, filters.mask,
            )
        )  # fmt: skip

    base_logits = rows_contiguous(base_logits)
    tokens = torch.empty((batch_size, gamma), dtype=torch.int64)
    usable = torch.empty(batch_size, dtype=torch.int64)
    confidence = None if confidence_head is None else torch.empty((batch_size, gamma))
    common = native_arguments(base_logits, anchors, hidden, head, confidence_head, temperatures, noise)
    q: DraftQ
    if support is None:
        latents = torch.empty((batch_size, gamma, native.arranged_size(head.w1.shape[1])))
        shifts, log_sums, token_probs = torch.empty((3, batch_size, gamma)).unbind()
        native.draft_dense(
            *common, tokens, usable, confidence, latents, shifts, log_sums, token_probs, isa or "",
            torch.get_num_threads(),
        )  # fmt: skip
        q = DenseQ(base_logits, head.w2, head.first_position, latents, shifts, log_sums, token_probs, isa or "")
    else:
        ids = torch.empty((batch_size, gamma, support), dtype=torch.int32)
        probs = torch.empty((batch_size, gamma, support))
        native.draft_sparse(
            *common, filters.top_k, filters.top_p, filters.mask, tokens, usable, confidence, ids, probs, 0, False,
            isa or "", torch.get_num_threads(),
        )  # fmt: skip
        q = SparseQ(ids, probs)
    return DraftBlock(tokens, None if temperatures is None else q, confidence, usable)


def native_covers(
    base_logits: Tensor, hidden: Tensor, head: MarkovHead, confidence_head: ConfidenceHead | None
) -> bool:
    """Whether the extension takes this device and these dtypes."""
    weights = [w for w in (head.w1, head.w2, head.joint) if w is not None]
    weights += [confidence_head.weight] if confidence_head is not None else []
    return (
        base_logits.device.type == "cpu"
        and base_logits.dtype in _LOGIT_DTYPES
        and hidden.dtype in _LOGIT_DTYPES
        and all(w.dtype in _WEIGHT_DTYPES for w in weights)
    )


def native_arguments(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
) -> tuple[object, ...]:
    """What the extension's sequential loops have in common, in their order."""
    native = extension()
    assert native is not None
    return (
        base_logits, anchors.long().contiguous(), rows_contiguous(hidden),
        native.Head(
            head.kind, head.activation, head.first_position, rows_contiguous(head.w1), rows_contiguous(head.w2),
            None if head.joint is None else rows_contiguous(head.joint),
            None if head.joint_bias is None else head.joint_bias.float().contiguous(),
        ),
        None if confidence_head is None else confidence_head.weight.contiguous(),
        0.0 if confidence_head is None or confidence_head.bias is None else float(confidence_head.bias),
        confidence_head is not None and confidence_head.with_markov,
        None if temperatures is None else temperatures.contiguous(),
        noise.seed & 0xFFFF_FFFF_FFFF_FFFF, noise.streams.contiguous(), noise.rounds.contiguous(),
        noise.coupled,
    )  # fmt: skip


def _on_cuda(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise,
    support: int | None,
    filters: DraftFilter,
) -> DraftBlock:
    arguments = (
        rows_contiguous(base_logits), anchors.long().contiguous(), rows_contiguous(hidden), head, confidence_head,
        None if temperatures is None else temperatures.contiguous(),
        contiguous_noise(noise),
    )  # fmt: skip
    if support is None:
        draft = cuda.draft_dense(*arguments)
    else:
        draft = cuda.draft_sparse(*arguments, support, top_k=filters.top_k, top_p=filters.top_p, mask=filters.mask)
    return DraftBlock(draft.tokens, None if temperatures is None else draft.q, draft.confidence, draft.usable)
