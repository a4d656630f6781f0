"""Attention over a paged KV cache on a CPU: one call for all requests of a batch.

The compiled kernel (`csrc/cpu/attention*.cpp`) reads the pages in place through the request table. Without the
extension, or for dtypes it does not know, the torch reference computes the same in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.ops.extension import extension, warn_missing
from sglang_dspark.ops.reference import paged_attention_reference

_KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_NO_MASK = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which rows of q belong to which request and what they see. Built once per forward, used by every layer.

    Request i owns the rows `query_start[i] : query_start[i + 1]` of q; they are its last positions, and the keys and
    values of all its `kv_lens[i]` positions are at the slots `req_to_token[req_pool_indices[i], :kv_lens[i]]`.

    Attributes:
        req_to_token: `[R, C]` int32.
        req_pool_indices: `[B]` int64.
        query_start: `[B + 1]` int64, ascending from 0.
        kv_lens: `[B]` int64, each at least the request's number of rows.
        mask: uint8, flat, empty when there is none: per request `[n, n]`, which of its n rows each row sees.
        num_queries: `query_start[-1]`.
    """

    req_to_token: Tensor
    req_pool_indices: Tensor
    query_start: Tensor
    kv_lens: Tensor
    mask: Tensor
    num_queries: int

    @classmethod
    def build(
        cls,
        req_to_token: Tensor,
        req_pool_indices: Tensor,
        query_start: Tensor,
        kv_lens: Tensor,
        mask: Tensor | None = None,
    ) -> AttentionBatch:
        """Check the description of a batch and bring it into the form the kernel reads.

        Args:
            req_to_token: `[R, C]` int32, rows contiguous.
            req_pool_indices: `[B]` integer, in `[0, R)`.
            query_start: `[B + 1]` integer, ascending from 0.
            kv_lens: `[B]` integer, in `[rows of the request, C]`.
            mask: None, or bool/uint8 with at least `sum(n_i ** 2)` elements; row-major `[n_i, n_i]` per request.

        Raises:
            ValueError: names the argument and what is wrong with it.
        """
        if req_to_token.dim() != 2 or req_to_token.dtype != torch.int32 or req_to_token.stride(1) != 1:
            raise ValueError(
                "req_to_token: expected int32 [R, C] with contiguous rows, got "
                f"{req_to_token.dtype} {list(req_to_token.shape)}"
            )
        batch = req_pool_indices.numel()
        _check_ints("req_pool_indices", req_pool_indices, batch)
        _check_ints("query_start", query_start, batch + 1)
        _check_ints("kv_lens", kv_lens, batch)
        rows = req_pool_indices.to(torch.int64).contiguous()
        starts = query_start.to(torch.int64).contiguous()
        lengths = kv_lens.to(torch.int64).contiguous()
        counts = starts.diff()
        if int(starts[0]) != 0 or bool((counts < 0).any()):
            raise ValueError(f"query_start: expected to ascend from 0, got {starts.tolist()}")
        table_rows, width = req_to_token.shape
        if bool(((rows < 0) | (rows >= table_rows)).any()):
            raise ValueError(f"req_pool_indices: outside [0, {table_rows}), the rows of req_to_token: {rows.tolist()}")
        if bool(((lengths < counts) | (lengths > width)).any()):
            raise ValueError(
                f"kv_lens: outside [rows of the request, {width} columns of req_to_token]: {lengths.tolist()} for "
                f"{counts.tolist()} rows"
            )
        flat = _NO_MASK
        if mask is not None:
            needed = int((counts * counts).sum())
            if mask.dtype not in (torch.bool, torch.uint8) or mask.numel() < needed:
                raise ValueError(
                    f"mask: expected bool or uint8 with at least {needed} elements, got {mask.dtype} {list(mask.shape)}"
                )
            flat = mask.reshape(-1)[:needed].contiguous().view(torch.uint8)
        return cls(req_to_token, rows, starts, lengths, flat, int(starts[-1]))


def _check_ints(name: str, value: Tensor, count: int) -> None:
    if value.dim() != 1 or value.numel() != count or value.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}: expected integers [{count}], got {value.dtype} {list(value.shape)}")


def paged_attention(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    query_start: Tensor,
    kv_lens: Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    window: int = -1,
    logit_cap: float = 0.0,
    mask: Tensor | None = None,
    isa: str | None = None,
) -> Tensor:
    """Attention of the last positions of each request over its paged keys and values.

    Args:
        q: `[T, Hq, D]`, any row stride.
        k_buffer: `[S, Hkv, D]`, v_buffer: `[S, Hkv, Dv]`; Hq a multiple of Hkv.
        req_to_token, req_pool_indices, query_start, kv_lens, mask: see `AttentionBatch.build`.
        causal: a row sees the keys up to its own position; otherwise all keys of its request. A mask replaces this
            among the request's own rows.
        scale: factor of the scores, `D ** -0.5` when None.
        window: with w >= 0, a row at position p sees no key before `p - w`.
        logit_cap: with c > 0, scores become `c * tanh(score / c)`.
        isa: "avx512", "avx2" or "scalar" instead of the best there is.

    Returns:
        `[T, Hq, Dv]` in `q.dtype`, accumulated in float32. A row that sees no key, or belongs to no request, is zero.

    Raises:
        ValueError: names the argument and its shape, before anything is computed.
    """
    batch = AttentionBatch.build(req_to_token, req_pool_indices, query_start, kv_lens, mask)
    return batch_attention(
        q, k_buffer, v_buffer, batch, causal=causal, scale=scale, window=window, logit_cap=logit_cap, isa=isa
    )


def batch_attention(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    batch: AttentionBatch,
    *,
    causal: bool,
    scale: float | None = None,
    window: int = -1,
    logit_cap: float = 0.0,
    isa: str | None = None,
) -> Tensor:
    """`paged_attention` for a batch that has been checked already, which is what a layer calls."""
    _check_tensors(q, k_buffer, v_buffer, batch)
    rows, heads, dim = q.shape
    scale = dim**-0.5 if scale is None else scale
    native = extension()
    if native is None or q.dtype not in _KERNEL_DTYPES or k_buffer.dtype not in _KERNEL_DTYPES:
        if native is None:
            warn_missing("paged_attention")
        mask = batch.mask if batch.mask.numel() else None
        return paged_attention_reference(
            q, k_buffer, v_buffer, batch.req_to_token, batch.req_pool_indices, batch.query_start, batch.kv_lens,
            causal=causal, scale=scale, window=window, logit_cap=logit_cap, mask=mask, compute_dtype=torch.float32,
        )  # fmt: skip
    out = q.new_empty(rows, heads, v_buffer.shape[2])
    if batch.num_queries < rows:
        out[batch.num_queries :] = 0
    native.paged_attention(
        out.data_ptr(), q.data_ptr(), k_buffer.data_ptr(), v_buffer.data_ptr(),
        batch.req_to_token.data_ptr(), batch.req_pool_indices.data_ptr(), batch.query_start.data_ptr(),
        batch.kv_lens.data_ptr(), batch.mask.data_ptr() if batch.mask.numel() else 0,
        batch.kv_lens.numel(), heads, k_buffer.shape[1], dim, v_buffer.shape[2], k_buffer.shape[0],
        q.stride(0), q.stride(1), k_buffer.stride(0), k_buffer.stride(1), v_buffer.stride(0), v_buffer.stride(1),
        batch.req_to_token.stride(0), q.dtype == torch.bfloat16, k_buffer.dtype == torch.bfloat16,
        causal, scale, window, logit_cap, isa or "", torch.get_num_threads(),
    )  # fmt: skip
    return out


def _check_tensors(q: Tensor, k_buffer: Tensor, v_buffer: Tensor, batch: AttentionBatch) -> None:
    for name, value in (("q", q), ("k_buffer", k_buffer), ("v_buffer", v_buffer)):
        if value.dim() != 3 or value.stride(2) != 1 or value.device.type != "cpu":
            raise ValueError(
                f"{name}: expected a CPU tensor [rows, heads, dim] with contiguous dim, got {value.device} "
                f"{list(value.shape)} strides {value.stride()}"
            )
    if k_buffer.dtype != v_buffer.dtype or k_buffer.shape[:2] != v_buffer.shape[:2]:
        raise ValueError(
            f"v_buffer: {v_buffer.dtype} {list(v_buffer.shape)} does not go with k_buffer {k_buffer.dtype} "
            f"{list(k_buffer.shape)}"
        )
    if q.shape[2] != k_buffer.shape[2] or k_buffer.shape[1] == 0 or q.shape[1] % k_buffer.shape[1]:
        raise ValueError(f"q: {list(q.shape)} does not go with k_buffer {list(k_buffer.shape)}")
    if batch.num_queries > q.shape[0]:
        raise ValueError(f"query_start: ends at {batch.num_queries}, but q has {q.shape[0]} rows")
