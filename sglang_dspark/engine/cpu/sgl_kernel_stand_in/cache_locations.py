"""Moves between the request table, slot lists and the KV pools. All arguments are CPU tensors, written in place.

`req_to_token [max_requests, max_context]` (int32) holds the KV slot of every token of every request.
"""

import ctypes

import numpy as np
import numpy.typing as npt
from torch import Tensor

Indices = npt.NDArray[np.int64]


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> tuple[Indices, Indices]:
    """Row and column of every cell in `[starts[i], ends[i])` of row `rows[i]`, in order; empty spans are skipped."""
    first = starts.numpy().astype(np.int64, copy=False)
    lengths = np.maximum(ends.numpy().astype(np.int64, copy=False) - first, 0)
    before = np.cumsum(lengths) - lengths
    columns = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(first - before, lengths)
    return np.repeat(rows.numpy().astype(np.int64, copy=False), lengths), columns


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the slots of `out_cache_loc` (concatenated spans) into `req_to_token[r, start:end]` of each request."""
    rows, columns = _spans(req_pool_indices, start_offset, end_offset)
    req_to_token.numpy()[rows, columns] = out_cache_loc.numpy()[: rows.size]


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read `req_to_token[r, start:end]` of each request into `out_cache_loc`, concatenated."""
    rows, columns = _spans(req_pool_indices, start_offset, end_offset)
    out_cache_loc.numpy()[: rows.size] = req_to_token.numpy()[rows, columns]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk * num_steps` slots after each request's length into `out_cache_loc`."""
    columns = seq_lens.numpy()[:, None] + np.arange(topk * num_steps)
    slots = req_to_token.numpy()[req_pool_indices.numpy()[:, None], columns]
    out_cache_loc.view(-1).numpy()[: slots.size] = slots.reshape(-1)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """`bonus_tokens[i]` = the last accepted token of request i in `accept_tokens [B, accept_stride]`."""
    count = accept_lens.numel()
    last = np.arange(count) * accept_stride + accept_lens.numpy() - 1
    bonus_tokens.numpy()[:count] = accept_tokens.reshape(-1).numpy()[last]


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of the accepted entries (`accept_index >= 0`) to the front of `accept_out_cache_loc`."""
    index = accept_index.reshape(-1).numpy()
    kept = index[index > -1]
    accept_out_cache_loc.view(-1).numpy()[: kept.size] = out_cache_loc.numpy()[kept]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots `src_loc` onto `tgt_loc` in every buffer; the two sets may overlap.

    Args:
        data_ptrs: `[buffers]` uint64, base address of each layer's key and value buffer.
        strides: `[buffers]` bytes per slot.
        tgt_loc, src_loc: `[n]` slots.
    """
    if src_loc.numel() == 0:
        return
    source, target = src_loc.numpy(), tgt_loc.numpy()
    slots = int(max(source.max(), target.max())) + 1
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(base)
        rows = np.frombuffer(memory, dtype=np.uint8).reshape(slots, stride)
        rows[target] = rows[source]  # the right side is a copy, so overlap is safe
