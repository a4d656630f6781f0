"""The heads' weights as the sequential loops' kernels take them, and the part of them that depends on h_k alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda.launch import DTYPES, FLOATS, check, vector
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead

_HEADS = {"vanilla": 0, "gated": 1, "rnn": 2}
_ACTIVATIONS = {"none": 0, "silu": 1}


class Heads:
    """The struct of weights, and what has to stay alive while it is used. `like` is `[B, γ, ...]`.

    Attributes:
        struct: the fields of `Heads` in `dspark/cuda/ops.h`.
        kept: tensors whose addresses are in it.
        confidence: `[B, γ]` float32, an output; None without a confidence head.
    """

    def __init__(
        self,
        head: MarkovHead,
        confidence: ConfidenceHead | None,
        hidden: Tensor,
        like: Tensor,
        vocab: int,
        w2_rows: int,
    ) -> None:
        batch, gamma = like.shape[:2]
        check("hidden", hidden, (batch, gamma, None), FLOATS, like)
        size, rank = hidden.shape[2], head.w1.shape[1]
        head.check(vocab, size, w2_rows)
        fields: dict[str, Any] = {
            "rank": rank, "hidden_size": size, "head": _HEADS[head.kind], "activation": _ACTIVATIONS[head.activation],
            "first_position": head.first_position,
            "w1": check("head.w1", head.w1, (None, rank), FLOATS, like),
            "w2": check("head.w2", head.w2, (w2_rows, rank), FLOATS, like),
            "w1_dtype": DTYPES[head.w1.dtype], "w2_dtype": DTYPES[head.w2.dtype],
            "w1_stride": head.w1.stride(0), "w2_stride": head.w2.stride(0),
        }  # fmt: skip
        self.kept: list[Tensor] = []
        if head.joint is not None and head.kind != "vanilla":
            first = 0 if head.kind == "gated" else 2 * rank
            part = _matmul(hidden, head.joint[:, first : first + size])
            self.kept.append(part if head.joint_bias is None else part + head.joint_bias.float())
            fields |= {
                "joint": check("head.joint", head.joint, (None, None), FLOATS, like),
                "joint_dtype": DTYPES[head.joint.dtype], "joint_stride": head.joint.stride(0),
                "hidden_joint": self.kept[-1].data_ptr(),
            }  # fmt: skip
        self.confidence: Tensor | None = None
        if confidence is not None:
            confidence.check(size, rank)
            self.confidence = torch.empty((batch, gamma), dtype=torch.float32, device=like.device)
            fields |= {
                "confidence": check("confidence_head.weight", confidence.weight, (1, None), FLOATS, like),
                "confidence_dtype": DTYPES[confidence.weight.dtype],
                "confidence_with_markov": confidence.with_markov,
                "hidden": hidden.data_ptr(), "hidden_dtype": DTYPES[hidden.dtype],
                "hidden_batch_stride": hidden.stride(0), "hidden_position_stride": hidden.stride(1),
            }  # fmt: skip
            if confidence.bias is not None:  # read by the kernel: its value here would mean waiting for the device
                self.kept.append(confidence.bias.float())
                fields["confidence_bias"] = vector(
                    "confidence_head.bias", self.kept[-1].view(1), (1,), torch.float32, like
                )
        self.struct = fields

    def confidence_address(self) -> int:
        """Where the kernel writes `confidence`, 0 without a confidence head."""
        return 0 if self.confidence is None else self.confidence.data_ptr()


def _matmul(hidden: Tensor, weight: Tensor) -> Tensor:
    """`hidden @ weight.T`, `[B, γ, N]` float32, accumulated in float32."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    if hidden.is_cuda and hidden.dtype == weight.dtype != torch.float32:
        out = torch.mm(rows, weight.t(), out_dtype=torch.float32)
    else:
        out = rows.float() @ weight.float().t()
    return out.view(*hidden.shape[:2], weight.shape[0])
