"""Temperature for the engine's tree verification on a CPU (EAGLE family, NGRAM), which otherwise commits argmax.

At every node of the tree the target's own next token is drawn; the walk follows a child that holds it, and ends with it
where none does. Whatever the tree holds, each emitted token is a draw from the target's distribution given the tokens
before it, and a child is accepted with the probability the target gives it: what the engine's GPU kernel does
(`tree_speculative_sampling_target_only`, thresholds 1). Nodes are drawn independently; only those on the path are read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from sglang_dspark.ops.target_probs import Filters, target_probs

_EAGLE = "sglang.srt.speculative.eagle_utils"
RELIES_ON = (f"{_EAGLE}.eagle_sample", f"{_EAGLE}.verify_tree_greedy_func", f"{_EAGLE}._verify_coins")

# What the walk below needs and is not told: the verification that is running.
_running: ContextVar[tuple[Any, Any] | None] = ContextVar("running verification", default=None)


def eagle_sample(
    original: Callable[..., Any], verify_input: Any, batch: Any, output: Any, *args: Any, **named: Any
) -> Any:
    """The engine's verification; `walk_tree` below finds the batch and its logits while it runs."""
    sampled = not (batch.forward_mode.is_idle() or batch.sampling_info.is_all_greedy)
    token = _running.set((batch, output) if sampled else None)
    try:
        return original(verify_input, batch, output, *args, **named)
    finally:
        _running.reset(token)


def walk_tree(original: Callable[..., Any], **named: Any) -> Any:
    """The engine's greedy walk, over drawn tokens where the request samples."""
    running = _running.get()
    if running is not None:
        batch, output = running
        named["target_predict"] = target_tokens(
            output.next_token_logits, batch, named["candidates"], named["target_predict"]
        )
    return original(**named)


def target_tokens(logits: torch.Tensor, batch: Any, candidates: torch.Tensor, greedy: torch.Tensor) -> torch.Tensor:
    """The target's token at every node: drawn after temperature and filters, or `greedy` where the request is greedy.

    Args:
        logits: `[B n, V]`, penalties, biases and grammar already in.
        batch: `sampling_info` and `seq_lens` are read.
        candidates: `[B, n]` tokens of the tree.
        greedy: `[B, n]` argmax of the rows.

    Returns:
        `[B, n]`, like `greedy`.
    """
    from sglang.srt.speculative.eagle_utils import _verify_coins

    info, nodes = batch.sampling_info, candidates.shape[1]
    coins, _ = _verify_coins(
        sampling_info=info, seq_lens=batch.seq_lens, draft_token_num=nodes, candidates=candidates, device=logits.device
    )
    row = torch.arange(candidates.shape[0]).repeat_interleave(nodes)
    filters = Filters(
        top_k=info.top_ks[row].clamp(max=logits.shape[1]) if info.need_top_k_sampling else None,
        top_p=info.top_ps[row] if info.need_top_p_sampling else None,
        min_p=info.min_ps[row] if info.need_min_p_sampling else None,
    )
    p = target_probs(logits, info.temperatures.view(-1)[row], filters)
    drawn = inverse_cdf(p, coins.reshape(-1)).view_as(greedy)
    return torch.where((info.top_ks <= 1).view(-1, 1), greedy, drawn.to(greedy.dtype))


def inverse_cdf(p: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """`[M]` int64 draws from rows `[M, V]` of weights by `uniform` `[M]` in [0, 1); a weight of 0 is never drawn."""
    cumulative = p.double().cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, (uniform.double() * cumulative[:, -1]).unsqueeze(1), right=True).squeeze(1)
    # Rounding can leave the threshold at the very end, behind the last entry with any weight.
    last = p.shape[1] - 1 - (p > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
    return torch.minimum(drawn, last)
