"""Argument checks that the operations share, and the layout their kernels read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.noise import Noise

if TYPE_CHECKING:
    from sglang_dspark.ops.draft_block import DraftFilter

_MAX_GAMMA, _MAX_VOCAB = 255, 1 << 23
_SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny


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
