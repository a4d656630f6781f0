"""Weights of the sequential head and of the confidence head, and their formulas in torch (algorithm, steps 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

HeadKind = Literal["vanilla", "gated", "rnn"]
Activation = Literal["none", "silu"]


@dataclass(frozen=True)
class MarkovHead:
    """Weights of a sequential head. `w1, w2: [V, r]`; `joint: [r, H + r]` (gated) or `[3 r, H + 2 r]` (rnn)."""

    kind: HeadKind
    w1: Tensor
    w2: Tensor
    joint: Tensor | None = None
    joint_bias: Tensor | None = None
    activation: Activation = "none"
    first_position: bool = True

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What `w2` projects at one position, in float32.

        Args:
            embedded: `[B, r]` float32, `W1[x_{k-1}]`.
            hidden: `[B, H]`, the backbone's state at this position.
            state: `[B, r]` float32, zero at the first position; only the rnn head reads it.

        Returns:
            latent `[B, r]`, next state `[B, r]`.
        """
        bias = None if self.joint_bias is None else self.joint_bias.float()
        if self.kind == "rnn":
            assert self.joint is not None
            z = torch.cat([state, embedded, hidden.float()], dim=-1)
            gate, candidate, output = F.linear(z, self.joint.float(), bias).chunk(3, dim=-1)
            keep = gate.sigmoid()
            return output.tanh(), keep * state + (1 - keep) * candidate.tanh()
        latent = F.silu(embedded) if self.activation == "silu" else embedded
        if self.kind == "gated":
            assert self.joint is not None
            z = torch.cat([hidden.float(), embedded], dim=-1)
            latent = F.linear(z, self.joint.float(), bias).sigmoid() * latent
        return latent, state

    def check(self, vocab_size: int, hidden_size: int, w2_rows: int | None = None) -> None:
        """Raises ValueError, naming the weight, when shapes do not agree with each other and with the logits.

        `w2_rows` is how many `w2` should have where it does not hold the whole vocabulary.
        """
        w2_rows = vocab_size if w2_rows is None else w2_rows
        rank = self.w1.shape[-1]
        joint = {"gated": (rank, hidden_size + rank), "rnn": (3 * rank, hidden_size + 2 * rank)}.get(self.kind)
        if self.kind not in ("vanilla", "gated", "rnn") or self.activation not in ("none", "silu"):
            raise ValueError(f"head.kind, head.activation: unknown, got {self.kind}, {self.activation}")
        if self.w1.ndim != 2 or self.w1.shape[0] < vocab_size:
            raise ValueError(f"head.w1: expected [V >= {vocab_size}, r], got {tuple(self.w1.shape)}")
        if tuple(self.w2.shape) != (w2_rows, rank):
            raise ValueError(f"head.w2: expected shape {(w2_rows, rank)}, got {tuple(self.w2.shape)}")
        if joint is None:
            return
        if self.joint is None or tuple(self.joint.shape) != joint:
            got = None if self.joint is None else tuple(self.joint.shape)
            raise ValueError(f"head.joint: expected shape {joint}, got {got}")
        if self.joint_bias is not None and tuple(self.joint_bias.shape) != joint[:1]:
            raise ValueError(f"head.joint_bias: expected shape {joint[:1]}, got {tuple(self.joint_bias.shape)}")


@dataclass(frozen=True)
class ConfidenceHead:
    """`c_k = σ(w · [h_k ; W1[x_{k-1}]] + b)`, `weight: [1, H + r]`; without `with_markov` on h alone, `[1, H]`."""

    weight: Tensor
    bias: Tensor | None
    with_markov: bool

    def __call__(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """`[B, γ, H]`, `[B, γ, r]` -> `[B, γ]` float32."""
        features = torch.cat([hidden.float(), embedded.float()], dim=-1) if self.with_markov else hidden.float()
        bias = None if self.bias is None else self.bias.float()
        return F.linear(features, self.weight.float(), bias).squeeze(-1).sigmoid()

    def check(self, hidden_size: int, rank: int) -> None:
        """Raises ValueError when the weight does not go with the hidden states."""
        expected = (1, hidden_size + (rank if self.with_markov else 0))
        if tuple(self.weight.shape) != expected:
            raise ValueError(f"confidence_head.weight: expected shape {expected}, got {tuple(self.weight.shape)}")
