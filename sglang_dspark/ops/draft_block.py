"""The sequential part of the draft: γ tokens drawn left to right from base logits (algorithm, step 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.ops import cuda
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
_MAX_GAMMA, _MAX_VOCAB = 255, 1 << 23
_SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny


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


def contiguous_noise(noise: Noise) -> Noise:
    """The same noise for a kernel."""
    return Noise(noise.seed, noise.streams.contiguous(), noise.rounds.contiguous())


def rows_contiguous(tensor: Tensor) -> Tensor:
    """The tensor, copied only if elements of a row do not follow each other."""
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def check_draft(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise | None,
    support: int | None,
    filters: DraftFilter | None,
    vocab_size: int | None = None,
    w2_rows: int | None = None,
) -> None:
    """Raises ValueError, naming the argument. `vocab_size`, `w2_rows`: where base logits or W2 are one rank's part."""
    shape = tuple(base_logits.shape)
    if len(shape) != 3 or not 1 <= shape[1] <= _MAX_GAMMA or not 1 <= shape[2] <= _MAX_VOCAB:
        raise ValueError(f"base_logits: expected [B, 1 <= gamma <= {_MAX_GAMMA}, 1 <= V <= 2^23], got {shape}")
    if not base_logits.is_floating_point() or not hidden.is_floating_point():
        raise ValueError(f"base_logits, hidden: expected floats, got {base_logits.dtype}, {hidden.dtype}")
    batch_size, gamma, width = shape
    vocab_size = width if vocab_size is None else vocab_size
    if hidden.ndim != 3 or tuple(hidden.shape[:2]) != (batch_size, gamma):
        raise ValueError(f"hidden: expected shape ({batch_size}, {gamma}, H), got {tuple(hidden.shape)}")
    head.check(vocab_size, hidden.shape[2], w2_rows)
    check_devices(base_logits.device, hidden=hidden, anchors=anchors, temperatures=temperatures)
    if confidence_head is not None:
        confidence_head.check(hidden.shape[2], head.w1.shape[1])
    check_vector("anchors", anchors, batch_size, (torch.int32, torch.int64))
    if readable(anchors) and batch_size and (int(anchors.min()) < 0 or int(anchors.max()) >= vocab_size):
        raise ValueError(f"anchors: expected tokens in [0, {vocab_size}), got {anchors.tolist()}")
    if temperatures is not None:
        check_temperatures(temperatures, batch_size)
        if noise is None:
            raise ValueError("noise: expected one, since temperatures are given; got None")
    if noise is not None:
        check_noise(noise, batch_size)
    if support is not None and support < 1:
        raise ValueError(f"support: expected at least 1, got {support}")
    if filters is not None:
        if support is None:
            raise ValueError("filters: expected None in dense form (support=None)")
        _check_filters(filters, batch_size, gamma, vocab_size)


def _check_filters(filters: DraftFilter, batch_size: int, gamma: int, vocab_size: int) -> None:
    if filters.top_k is not None:
        check_vector("top_k", filters.top_k, batch_size, (torch.int64,))
        if readable(filters.top_k) and bool((filters.top_k < 1).any()):
            raise ValueError(f"top_k: expected at least 1, got {filters.top_k.tolist()}")
    if filters.top_p is not None:
        check_vector("top_p", filters.top_p, batch_size, (torch.float32,))
        if readable(filters.top_p) and not bool(((filters.top_p >= 0) & (filters.top_p <= 1)).all()):
            raise ValueError(f"top_p: expected values in [0, 1], got {filters.top_p.tolist()}")
    if filters.mask is not None:
        expected = (batch_size, gamma, math.ceil(vocab_size / 32))
        if tuple(filters.mask.shape) != expected or filters.mask.dtype != torch.int32:
            raise ValueError(f"mask: expected int32 {expected}, got {filters.mask.dtype} {tuple(filters.mask.shape)}")


def readable(tensor: Tensor) -> bool:
    """Whether values can be checked at no cost; reading those of a GPU would wait for its stream."""
    return tensor.device.type == "cpu"


def check_devices(device: torch.device, **tensors: Tensor | None) -> None:
    """Raises ValueError, naming the argument, for a tensor that is on another device."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name}: expected a tensor on {device}, got {tensor.device}")


def check_temperatures(temperatures: Tensor, batch_size: int) -> None:
    """Raises ValueError unless `[B]` float32, each 0 or positive, finite and not subnormal."""
    check_vector("temperatures", temperatures, batch_size, (torch.float32,))
    if not readable(temperatures):
        return
    known = (temperatures == 0) | ((temperatures >= _SMALLEST_TEMPERATURE) & temperatures.isfinite())
    if not bool(known.all()):
        raise ValueError(f"temperatures: expected 0 or a positive number, got {temperatures.tolist()}")


def check_noise(noise: Noise, batch_size: int) -> None:
    """Raises ValueError unless streams and rounds are `[B]` int64, and coupled, if given, `[B]` bool."""
    check_vector("noise.streams", noise.streams, batch_size, (torch.int64,))
    check_vector("noise.rounds", noise.rounds, batch_size, (torch.int64,))
    if noise.coupled is not None:
        check_vector("noise.coupled", noise.coupled, batch_size, (torch.bool,))


def check_vector(name: str, value: Tensor, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raises ValueError, naming the argument, unless `[count]` of one of the dtypes."""
    if tuple(value.shape) != (count,) or value.dtype not in dtypes:
        raise ValueError(f"{name}: expected shape ({count},) of {dtypes}, got {tuple(value.shape)} of {value.dtype}")
