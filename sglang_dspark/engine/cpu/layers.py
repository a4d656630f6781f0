"""The engine's small layers on a CPU, in one compiled call each instead of five to fifteen torch calls.

Every hook here does exactly the plain case and hands anything else to the engine's own method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops import elementwise

RELIES_ON: tuple[str, ...] = (
    "sglang.srt.layers.layernorm.RMSNorm.forward_cpu",
    "sglang.srt.layers.activation.SiluAndMul.forward_cpu",
    "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_cpu",
    "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native",
)

_DTYPES = (torch.float32, torch.bfloat16)


def _plain_rows(x: Tensor) -> bool:
    return x.dim() == 2 and x.dtype in _DTYPES and x.stride(1) == 1


def rms_norm_forward(
    original: Callable[..., Any],
    norm: Any,
    x: Tensor,
    residual: Tensor | None = None,
    post_residual_addition: Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """`RMSNorm.forward_cpu`: the normed rows, and with a residual also the new residual."""
    plain = (
        _plain_rows(x)
        and x.shape[1] == norm.hidden_size
        and norm.weight.dtype == x.dtype
        and post_residual_addition is None
        and norm.variance_size_override is None
        and norm.override_orig_dtype is None
        and not norm.cast_x_before_out_mul
        and not norm.fp32_residual
        and (residual is None or (_plain_rows(residual) and residual.dtype == x.dtype))
    )
    if not plain:
        return original(norm, x, residual, post_residual_addition, quant_linear)
    out, total = elementwise.rms_norm(x, norm.weight.data, norm.variance_epsilon, residual)
    return out if residual is None else (out, total)


def silu_and_mul_forward(original: Callable[..., Any], layer: Any, x: Tensor) -> Any:
    """`SiluAndMul.forward_cpu`."""
    return elementwise.silu_and_mul(x) if _plain_rows(x) else original(layer, x)


def rotary_forward(
    original: Callable[..., Any],
    rope: Any,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    offsets: Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> Any:
    """`RotaryEmbedding.forward_cpu`, for the classes that do not bring a rotation of their own."""
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

    table = rope.cos_sin_cache
    plain = (
        _plain_rows(query)
        and key is not None
        and _plain_rows(key)
        and positions.dim() == 1
        and positions.dtype == torch.int64
        and positions.is_contiguous()
        and offsets is None
        and fused_set_kv_buffer_arg is None
        and type(rope).forward_native is RotaryEmbedding.forward_native
        and not hasattr(rope, "sin_cos_cache")
        and table.dtype == torch.float32
        and table.dim() == 2
        and table.shape[1] == rope.rotary_dim
    )
    if not plain:
        return original(rope, positions, query, key, offsets, fused_set_kv_buffer_arg)
    head_dim, neox = rope.head_size, rope.is_neox_style
    return (
        elementwise.rotary(positions, query, table, head_dim, neox=neox),
        elementwise.rotary(positions, key, table, head_dim, neox=neox),
    )
