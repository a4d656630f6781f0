"""Rows of base logits, and what a dense draft leaves of its q, as the kernels take them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sglang_dspark.ops.cuda.launch import DTYPES, FLOATS, check
from sglang_dspark.ops.draft_q import DenseQ


def logits_fields(name: str, logits: Tensor, prefix: str = "") -> dict[str, int]:
    """Address, dtype and strides of `[B, γ, V]`; raises ValueError when it is something else."""
    check(name, logits, (None, None, None), FLOATS, logits)
    return {
        f"{prefix}logits": logits.data_ptr(), f"{prefix}logits_dtype": DTYPES[logits.dtype],
        "batch_stride": logits.stride(0), "position_stride": logits.stride(1),
    }  # fmt: skip


def dense_rows(q: DenseQ, logits: dict[str, int]) -> dict[str, Any]:
    """The fields of `DenseRows`; `logits` are those of `q.base_logits`."""
    return dict(
        **logits, w2=q.w2.data_ptr(), w2_dtype=DTYPES[q.w2.dtype], w2_stride=q.w2.stride(0), rank=q.w2.shape[1],
        first_position=q.first_position, latents=q.latents.data_ptr(), shifts=q.shifts.data_ptr(),
        log_sums=q.log_sums.data_ptr(), token_probs=q.token_probs.data_ptr(),
    )  # fmt: skip
