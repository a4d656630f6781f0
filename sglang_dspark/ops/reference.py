"""Torch references of the operations: the definition of what the compiled versions compute, in any precision."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention_reference(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    query_start: Tensor,
    kv_lens: Tensor,
    *,
    causal: bool,
    scale: float,
    window: int = -1,
    logit_cap: float = 0.0,
    mask: Tensor | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Same arguments and result as `ops.attention.paged_attention`, computed request by request.

    Args:
        compute_dtype: the precision of everything between reading the inputs and rounding the output.

    Returns:
        `[T, Hq, Dv]` in `q.dtype`; rows that belong to no request are zero.
    """
    heads, kv_heads = q.shape[1], k_buffer.shape[1]
    out = torch.zeros(q.shape[0], heads, v_buffer.shape[2], dtype=q.dtype, device=q.device)
    starts, lengths = query_start.tolist(), kv_lens.tolist()
    mask_at = 0
    for index, row in enumerate(req_pool_indices.tolist()):
        begin, end, kv_len = starts[index], starts[index + 1], lengths[index]
        count = end - begin
        own_mask = None
        if mask is not None:
            own_mask = mask.view(-1)[mask_at : mask_at + count * count].view(count, count).bool()
            mask_at += count * count
        if count == 0 or kv_len == 0:
            continue
        slots = req_to_token[row, :kv_len].long()
        keys = k_buffer[slots].to(compute_dtype).repeat_interleave(heads // kv_heads, dim=1)
        values = v_buffer[slots].to(compute_dtype).repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(compute_dtype), keys) * scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        hidden = ~_visible(count, kv_len, causal, window, own_mask, q.device)
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1).masked_fill(hidden.all(-1)[:, None], 0.0)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def _visible(
    count: int, kv_len: int, causal: bool, window: int, own_mask: Tensor | None, device: torch.device
) -> Tensor:
    """`[count, kv_len]` bool: which keys each of the last `count` positions sees."""
    position = torch.arange(kv_len - count, kv_len, device=device)[:, None]
    key = torch.arange(kv_len, device=device)[None, :]
    visible = torch.ones(count, kv_len, dtype=torch.bool, device=device)
    if own_mask is not None:
        visible[:, kv_len - count :] = own_mask
    elif causal:
        visible &= key <= position
    if window >= 0:
        visible &= key >= position - window
    return visible
