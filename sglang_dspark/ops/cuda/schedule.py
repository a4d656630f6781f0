"""The prefix scheduler on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda.launch import check, native_module, stream_of, vector

_MAX_SCHEDULED = 16384


def schedule(
    confidence: Tensor,
    seconds: Tensor,
    limits: Tensor,
    lagged: Tensor | None = None,
    lagged_limits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Verify lengths without a host round trip: the causal scan, or with `lagged` the lagged budget and its best.

    Args:
        confidence: `[R, γ]` float32, this round's, R γ <= 16384.
        seconds: `[>= R (1 + γ) + 1]` float64, positive; a round's time for every total of verified tokens.
        limits: `[R]` int64, the most each request may verify.
        lagged: `[R, γ]` float32, an earlier round's confidences, with limits of their own (default: `limits`).

    Returns:
        lengths `[R]` int64, their sum `[1]` int64.
    """
    requests, gamma = confidence.shape
    if requests * gamma > _MAX_SCHEDULED:
        raise ValueError(f"confidence: expected at most {_MAX_SCHEDULED} candidates, got {tuple(confidence.shape)}")
    if seconds.numel() < requests * (1 + gamma) + 1:
        raise ValueError(f"seconds: expected at least {requests * (1 + gamma) + 1} entries, got {tuple(seconds.shape)}")
    lengths = torch.empty(requests, dtype=torch.int64, device=confidence.device)
    admitted = torch.zeros(1, dtype=torch.int64, device=confidence.device)
    fields: dict[str, Any] = {}
    if lagged is not None:
        own = limits if lagged_limits is None else lagged_limits
        fields = {
            "lagged": check("lagged", lagged, (requests, gamma), (torch.float32,), confidence),
            "lagged_stride": lagged.stride(0),
            "lagged_limits": vector("lagged_limits", own, (requests,), torch.int64, confidence),
        }
    native_module().schedule(
        stream_of(lengths),
        **fields, requests=requests, gamma=gamma, confidence_stride=confidence.stride(0),
        confidence=check("confidence", confidence, (requests, gamma), (torch.float32,), confidence),
        limits=vector("limits", limits, (requests,), torch.int64, confidence),
        seconds=vector("seconds", seconds, (seconds.numel(),), torch.float64, confidence),
        lengths=lengths.data_ptr(), admitted=admitted.data_ptr(),
    )  # fmt: skip
    return lengths, admitted
