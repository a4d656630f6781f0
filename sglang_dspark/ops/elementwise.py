"""The small operations between the matrix products of a decoder layer, one compiled call each, on a CPU.

In torch each is five to fifteen calls. float32 and bfloat16; computed in float32 and rounded once. Without the
extension the torch references below run instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_dspark.ops.extension import extension, warn_missing

_DTYPES = (torch.float32, torch.bfloat16)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, isa: str | None = None
) -> tuple[Tensor, Tensor]:
    """`y * weight / rms(y)` of each row, with `y = x`, or `x + residual`.

    Args:
        x: `[rows, width]`, any row stride.
        weight: `[width]`, of x's dtype.
        residual: None, or `[rows, width]` of x's dtype.
        isa: "avx512", "avx2" or "scalar" instead of the best there is.

    Returns:
        The result and y (x itself without a residual), both `[rows, width]`. What is normalised is y before rounding.

    Raises:
        ValueError: names the argument.
    """
    _check_rows("x", x)
    if weight.shape != x.shape[1:] or weight.dtype != x.dtype or not weight.is_contiguous():
        raise ValueError(f"weight: {weight.dtype} {list(weight.shape)} does not go with x {x.dtype} {list(x.shape)}")
    if residual is not None:
        _check_rows("residual", residual)
        if residual.shape != x.shape or residual.dtype != x.dtype:
            raise ValueError(f"residual: {residual.dtype} {list(residual.shape)}, but x is {x.dtype} {list(x.shape)}")
    native = extension()
    if native is None:
        warn_missing("rms_norm")
        return rms_norm_reference(x, weight, eps, residual)
    rows, width = x.shape
    out = x.new_empty(rows, width)
    total = x if residual is None else x.new_empty(rows, width)
    native.rms_norm(
        out.data_ptr(), total.data_ptr(), x.data_ptr(), residual.data_ptr() if residual is not None else 0,
        weight.data_ptr(), rows, width, x.stride(0), residual.stride(0) if residual is not None else 0,
        eps, x.dtype == torch.bfloat16, isa or "", torch.get_num_threads(),
    )  # fmt: skip
    return out, total


def silu_and_mul(x: Tensor, *, isa: str | None = None) -> Tensor:
    """`silu(gate) * up` for rows `[gate, up]`.

    Args:
        x: `[rows, 2 * width]`, any row stride.
        isa: as in `rms_norm`.

    Returns:
        `[rows, width]`.

    Raises:
        ValueError: names the argument.
    """
    _check_rows("x", x)
    if x.shape[1] % 2:
        raise ValueError(f"x: expected an even number of columns, got {list(x.shape)}")
    native = extension()
    if native is None:
        warn_missing("silu_and_mul")
        return silu_and_mul_reference(x)
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    native.silu_and_mul(
        out.data_ptr(), x.data_ptr(), rows, width, x.stride(0), x.dtype == torch.bfloat16, isa or "",
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def rotary(
    positions: Tensor, x: Tensor, cos_sin: Tensor, head_dim: int, *, neox: bool, isa: str | None = None
) -> Tensor:
    """Rotary embedding: rotates the leading dimensions of every head by the row's position.

    Args:
        positions: `[rows]` int64, in `[0, P)`.
        x: `[rows, heads * head_dim]`, any row stride.
        cos_sin: `[P, rotary_dim]` float32, cosines then sines.
        neox: rotate the pairs `(i, i + rotary_dim / 2)`, otherwise `(2 i, 2 i + 1)`.
        isa: as in `rms_norm`.

    Returns:
        `[rows, heads * head_dim]`, a new tensor.

    Raises:
        ValueError: names the argument. IndexError: a position outside the table (not without the extension, where
            torch reports it).
    """
    _check_rows("x", x)
    rows, columns = x.shape
    if positions.dtype != torch.int64 or positions.shape != (rows,) or not positions.is_contiguous():
        raise ValueError(f"positions: expected int64 [{rows}], got {positions.dtype} {list(positions.shape)}")
    if cos_sin.dtype != torch.float32 or cos_sin.dim() != 2 or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin: expected contiguous float32 [P, D], got {cos_sin.dtype} {list(cos_sin.shape)}")
    rotary_dim = cos_sin.shape[1]
    if columns % head_dim or rotary_dim > head_dim or rotary_dim % 2:
        raise ValueError(f"head_dim: {head_dim} does not go with x {list(x.shape)} and cos_sin {list(cos_sin.shape)}")
    native = extension()
    if native is None:
        warn_missing("rotary")
        return rotary_reference(positions, x, cos_sin, head_dim, neox=neox)
    out = x.new_empty(rows, columns)
    native.rotary(
        out.data_ptr(), x.data_ptr(), positions.data_ptr(), cos_sin.data_ptr(), rows, columns // head_dim, head_dim,
        rotary_dim, x.stride(0), cos_sin.shape[0], neox, x.dtype == torch.bfloat16, isa or "",
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def _check_rows(name: str, value: Tensor) -> None:
    if value.dim() != 2 or value.stride(1) != 1 or value.dtype not in _DTYPES or value.device.type != "cpu":
        raise ValueError(
            f"{name}: expected a CPU float32 or bfloat16 tensor [rows, columns] with contiguous columns, got "
            f"{value.device} {value.dtype} {list(value.shape)} strides {value.stride()}"
        )


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """`rms_norm` in torch, computed in `dtype`."""
    value = x.to(dtype) if residual is None else x.to(dtype) + residual.to(dtype)
    factor = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    return (value * factor * weight.to(dtype)).to(x.dtype), value.to(x.dtype)


def silu_and_mul_reference(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`silu_and_mul` in torch, computed in `dtype`."""
    gate, up = x.to(dtype).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def rotary_reference(
    positions: Tensor, x: Tensor, cos_sin: Tensor, head_dim: int, *, neox: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`rotary` in torch, computed in `dtype`."""
    rotary_dim = cos_sin.shape[1]
    heads = x.to(dtype).unflatten(-1, (-1, head_dim))
    cos, sin = cos_sin[positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
    turned, kept = heads[..., :rotary_dim], heads[..., rotary_dim:]
    a, b = turned.chunk(2, dim=-1) if neox else (turned[..., ::2], turned[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.cat(pair, dim=-1) if neox else torch.stack(pair, dim=-1).flatten(-2)
    return torch.cat([turned, kept], dim=-1).flatten(-2).to(x.dtype)
