"""Torch versions of engine functions that exist only as Triton kernels. Signatures are the engine's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.errors import ConfigError


def chain_speculative_sampling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
    **_: Any,
) -> None:
    """Rejection sampling of a chain, token by token; writes `predicts`, `accept_index` and `accept_token_num`.

    Args:
        predicts: flat `[B * n]`, the token after each visited node.
        accept_index: `[B, n]`, the flat indices of the visited nodes.
        accept_token_num: `[B]`, accepted drafts.
        candidates, retrive_index: `[B, n]`, column 0 is the anchor.
        uniform_samples: `[B, >= n - 1]`; uniform_samples_for_final_sampling: `[B]`.
        target_probs: `[B, n, V]`; draft_probs: `[B, >= n - 1, V]`.

    Raises:
        ConfigError: for block verification.
    """
    if block_verification:
        raise ConfigError(
            "--speculative-use-block-verification has no CPU version; leave it out to verify token by token"
        )
    batch, nodes = candidates.shape
    drafts = nodes - 1
    token = candidates[:, 1:].to(torch.int64).unsqueeze(-1)
    p = target_probs[:, :drafts].gather(2, token).squeeze(-1)
    q = draft_probs[:, :drafts].gather(2, token).squeeze(-1)
    accepted = (q > 0) & (q <= 1) & (uniform_samples[:, :drafts] * q < p)
    count = accepted.to(torch.int64).cumprod(1).sum(1)

    row = torch.arange(batch)
    weights = target_probs[row, count]
    rejected = (count < drafts).nonzero().squeeze(1)
    if rejected.numel():
        against = draft_probs[rejected, count[rejected]]
        against = against.where((against >= 0) & (against <= 1), torch.zeros_like(against))
        weights[rejected] = (weights[rejected] - against).clamp_min(0)
    cumulative = weights.cumsum(-1)
    threshold = (uniform_samples_for_final_sampling[:batch] * cumulative[:, -1]).unsqueeze(-1)
    final = (cumulative <= threshold).sum(-1).clamp_max(weights.shape[-1] - 1)

    accept_token_num[:batch] = count.to(accept_token_num.dtype)
    column = torch.arange(nodes)
    visited = column <= count[:, None]
    index = retrive_index[:batch].to(torch.int64)
    accept_index[:batch, :nodes][visited] = index[visited].to(accept_index.dtype)
    following = torch.cat([candidates[:, 1:], candidates[:, :1]], dim=1).to(torch.int64)
    following[row, count] = final
    predicts[index[visited]] = following[visited].to(predicts.dtype)


def table_qk_norm_rope(
    qkv: Tensor,
    positions: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    num_q_heads: int,
    num_k_heads: int,
    head_dim: int,
    eps: float,
) -> None:
    """RMS norm and NeoX RoPE of the query and key columns of `qkv [T, (Hq + Hk + Hv) * D]`, in place.

    Args:
        positions: `[T]`; cos_sin_cache: `[max position, D]`, cosines then sines.
        q_weight, k_weight: `[D]`.
    """
    heads = qkv[:, : (num_q_heads + num_k_heads) * head_dim].unflatten(-1, (-1, head_dim))
    x = heads.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    weight = torch.cat([q_weight.expand(num_q_heads, -1), k_weight.expand(num_k_heads, -1)]).float()
    first, second = (x * weight).to(qkv.dtype).float().chunk(2, dim=-1)
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
