"""Matrix products against weights that were packed once, for the few rows of a decoding or verifying batch.

torch's `F.linear` reads the weight as it lies in memory and rearranges it at every call. oneDNN's packed form costs a
second copy of the weight and makes the cost of a product nearly flat up to about 8 rows in float32 and 16 in bfloat16
on a CPU with AMX, which is what lets a verified draft token cost less than a decoded one (figures: docs/cpu.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import psutil
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
WEIGHT_UPDATES: tuple[str, ...] = tuple(
    f"{_UPDATER}.{name}"
    for name in (
        "update_weights_from_disk",
        "load_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
    )
)
RELIES_ON: tuple[str, ...] = (
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
    "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
    "sglang.srt.layers.logits_processor.should_apply_lm_head_quant_method",
    "sglang.srt.models.dspark.project_through_lm_head",
    *WEIGHT_UPDATES,
)

# Rows the packed form is laid out for. 8, 16 and 32 measured the same; 1 was up to 60 % slower from 2 rows on.
_LAYOUT_ROWS = 16
# Below this, float32 products are bound by reading the weight, and the plain form was 3 % faster.
_PLAIN_ROWS_FLOAT32 = 3
# Packed copies may take this part of the memory that is available when the first one is made.
_MEMORY_SHARE = 0.25


class PackedWeights:
    """The packed copies of this process. A copy lives on its module and is renewed when weights are updated."""

    def __init__(self) -> None:
        self._generation = 0
        self._bytes_left: int | None = None

    def invalidate(self) -> None:
        """Weights have changed in place: every copy is stale."""
        self._generation += 1
        self._bytes_left = None

    def of(self, module: torch.nn.Module, weight: Tensor) -> Tensor | None:
        """The packed form of `weight [N, K]`, made when needed; None when there is no room for it."""
        kept = module.__dict__.get("_dspark_packed")
        if kept is not None and kept[0] == self._generation and kept[1] == weight.data_ptr():
            return kept[2]
        packed = self._pack(weight)
        module.__dict__["_dspark_packed"] = (self._generation, weight.data_ptr(), packed)
        return packed

    def _pack(self, weight: Tensor) -> Tensor | None:
        if self._bytes_left is None:
            self._bytes_left = int(psutil.virtual_memory().available * _MEMORY_SHARE)
        size = weight.numel() * weight.element_size()
        if size > self._bytes_left:
            _say_no_room(int(_MEMORY_SHARE * 100))
            return None
        self._bytes_left -= size
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _LAYOUT_ROWS)


@cache
def _say_no_room(share: int) -> None:
    logger.warning(
        "Not all weights are packed for the CPU: packed copies would take more than %d %% of the available memory. "
        "The others use torch's plain product, which is slower for small batches.",
        share,
    )


packed_weights = PackedWeights()


def packed_linear(module: torch.nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """`x @ weight.T + bias`, or None where the plain product is as good or the only one.

    Args:
        module: keeps the packed copy.
        x: `[..., K]`; weight: `[N, K]`; bias: None or `[N]`; all float32 or all bfloat16, on the CPU.
    """
    if (
        weight.dtype not in (torch.float32, torch.bfloat16)
        or x.dtype != weight.dtype
        or weight.dim() != 2
        or not weight.is_contiguous()
        or weight.device.type != "cpu"
        or (bias is not None and bias.dtype != weight.dtype)
        or not torch.backends.mkldnn.is_available()
    ):
        return None
    rows = x.numel() // x.shape[-1]
    if rows == 0 or (rows <= _PLAIN_ROWS_FLOAT32 and weight.dtype == torch.float32):
        return None
    packed = packed_weights.of(module, weight)
    if packed is None:
        return None
    out = torch.ops.mkldnn._linear_pointwise(x.reshape(rows, -1), packed, bias, "none", [], "")
    return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)


def linear_apply(
    original: Callable[..., Tensor], method: Any, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`UnquantizedLinearMethod.apply`."""
    out = packed_linear(layer, x, layer.weight, bias)  # type: ignore[arg-type]
    return original(method, layer, x, bias) if out is None else out


def compute_lm_head(
    original: Callable[..., Tensor],
    processor: Any,
    hidden_states: Tensor,
    lm_head: Any,
    embedding_bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`LogitsProcessor._compute_lm_head`, for a plain head in its own precision."""
    if (
        _plain_head(lm_head)
        and not hasattr(lm_head, "set_lora")
        and (not processor.use_fp32_lm_head or lm_head.weight.dtype == torch.float32)
        and processor.rl_on_policy_target is None
    ):
        logits = packed_linear(lm_head, hidden_states.to(lm_head.weight.dtype), lm_head.weight)
        if logits is not None:
            return logits
    return original(processor, hidden_states, lm_head, embedding_bias, out=out)


def project_through_lm_head(original: Callable[..., Tensor], hidden: Tensor, lm_head: Any) -> Tensor:
    """The draft's product with the target's head."""
    if _plain_head(lm_head):
        logits = packed_linear(lm_head, hidden.to(lm_head.weight.dtype), lm_head.weight)
        if logits is not None:
            return logits
    return original(hidden, lm_head)


def _plain_head(lm_head: Any) -> bool:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    return hasattr(lm_head, "weight") and not should_apply_lm_head_quant_method(
        lm_head, getattr(lm_head, "quant_method", None)
    )


def after_weight_update(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Any of `WEIGHT_UPDATES`: the copies are stale even when the update failed half-way."""
    try:
        return original(*args, **kwargs)
    finally:
        packed_weights.invalidate()
