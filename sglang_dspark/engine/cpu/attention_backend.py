"""The `torch_native` attention backend of a CPU engine: one compiled call per layer over all requests.

Adds what the engine's own lacks for speculation (target verification, uniform and ragged, tree masks, the draft's
non-causal block, multi-step drafts) and replaces its Python loop over requests. What is built once per forward is
built in `init_forward_metadata`; a layer only passes it on.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from sglang_dspark.ops.attention import AttentionBatch, batch_attention

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class CpuAttentionBackend(TorchNativeAttnBackend):
    """See the module. `forward_*` keep the engine's signatures: q `[T, Hq * D]`, k and v `[T, Hkv, D]`."""

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__(model_runner)
        self._batch: AttentionBatch | None = None
        self._verifying = False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Describe the batch for this forward's layers."""
        super().init_forward_metadata(forward_batch)
        mode = forward_batch.forward_mode
        self._verifying = mode.is_target_verify()
        self._batch = None
        reason = self._engine_path_reason(forward_batch)
        if reason:
            _say_engine_path(reason)
            return
        if mode.is_idle() or forward_batch.batch_size == 0:
            return
        lengths, mask = forward_batch.seq_lens, None
        if self._verifying:
            counts, mask = _verify_rows(forward_batch)
            lengths = lengths + counts
        elif mode.is_decode():
            counts = torch.ones_like(lengths)
        else:
            counts = forward_batch.extend_seq_lens
        self.describe_batch(self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices, counts, lengths, mask)

    def describe_batch(
        self, req_to_token: Tensor, rows: Tensor, counts: Tensor, kv_lens: Tensor, mask: Tensor | None = None
    ) -> None:
        """Set the batch by hand: `counts [B]` rows of q per request; see `AttentionBatch.build` for the others."""
        query_start = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self._batch = AttentionBatch.build(req_to_token, rows, query_start, kv_lens, mask)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:
        if self._batch is None or layer.is_cross_attention:
            if self._verifying:
                raise RuntimeError(
                    "speculative verification on a CPU: this model needs the engine's own torch_native attention "
                    f"({self._engine_path_reason(forward_batch) or 'cross attention'}), which cannot verify. Serve it "
                    "without speculation."
                )
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:
        if self._batch is None or layer.is_cross_attention:
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)

    def _attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> Tensor:
        assert self._batch is not None
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        window = layer.sliding_window_size if causal and layer.sliding_window_size is not None else -1
        out = batch_attention(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            self._batch,
            causal=causal,
            scale=layer.scaling,
            window=window,
            logit_cap=layer.logit_cap or 0.0,
        )
        return out.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    def _engine_path_reason(self, forward_batch: ForwardBatch) -> str:
        """Why this batch must take the engine's own loop, empty when it need not."""
        if self.use_sliding_window_kv_pool:
            return "separate KV pool for sliding-window layers"
        if forward_batch.encoder_lens is not None:
            return "encoder-decoder model"
        return ""


def _verify_rows(forward_batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
    """Rows per request `[B]` of a verify or draft-block batch, and the tree mask if it is a tree.

    A DSpark batch of ragged lengths carries them in its layout; everything else is `draft_token_num` wide.
    """
    spec_info = forward_batch.spec_info
    layout = getattr(spec_info, "ragged_verify_layout", None)
    if layout is not None:
        return layout.verify_lens.to(torch.int64), None
    counts = torch.full_like(forward_batch.seq_lens, spec_info.draft_token_num, dtype=torch.int64)
    # tree_topk 1 is a chain, which is causal; NGRAM trees carry -1. The engine's mask on a CPU is [B, n, n].
    mask = getattr(spec_info, "custom_mask", None)
    if getattr(spec_info, "tree_topk", 1) == 1 or mask is None or mask.numel() == 0:
        return counts, None
    return counts, mask


@cache
def _say_engine_path(reason: str) -> None:
    logger.warning("The engine's own torch_native attention serves this model (%s); it is slow and exact.", reason)


class CpuMultiStepDraftBackend:
    """Draft decoding of EAGLE and STANDALONE: step s of branch t of a request sees its prefix and s + 1 own tokens.

    The engine lays the slots of branch t at `req_to_token[r, len + t * steps :]`; a private table puts each branch
    directly behind a copy of its request's prefix.
    """

    def __init__(self, model_runner: ModelRunner, topk: int, speculative_num_steps: int) -> None:
        self.topk = topk
        self.speculative_num_steps = speculative_num_steps
        self.device = model_runner.device
        self.attn_backends = [CpuAttentionBackend(model_runner) for _ in range(speculative_num_steps - 1)]
        self._req_to_token: Tensor = model_runner.req_to_token_pool.req_to_token

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Describe all steps at once; each step's backend then serves one forward."""
        steps, topk = self.speculative_num_steps, self.topk
        lengths = forward_batch.seq_lens.repeat_interleave(topk).to(torch.int64)
        branch = torch.arange(topk).repeat(forward_batch.batch_size)
        width = int(lengths.max()) + steps
        column = torch.arange(width)[None, :]
        own = column >= lengths[:, None]
        source = (column + own * (branch * steps)[:, None]).clamp_max(self._req_to_token.shape[1] - 1)
        table = self._req_to_token[forward_batch.req_pool_indices.repeat_interleave(topk)[:, None], source]
        rows, ones = torch.arange(lengths.numel()), torch.ones_like(lengths)
        for step, backend in enumerate(self.attn_backends):
            backend.swa_out_cache_loc = None
            backend.describe_batch(table, rows, ones, lengths + step + 1)
