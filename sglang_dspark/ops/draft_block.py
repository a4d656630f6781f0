"""The sequential part of the draft: γ tokens drawn left to right from the base logits (algorithm, step 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from sglang_dspark.ops.categorical import draw

HeadKind = Literal["vanilla", "gated", "rnn"]
Activation = Literal["none", "silu"]


@dataclass(frozen=True)
class MarkovHead:
    """Weights of a sequential head. `w1, w2: [V, r]`; `joint: [r, H + r]` (gated) or `[3 r, H + 2 r]` (rnn)."""

    kind: HeadKind
    w1: torch.Tensor
    w2: torch.Tensor
    joint: torch.Tensor | None = None
    joint_bias: torch.Tensor | None = None
    activation: Activation = "none"
    first_position: bool = True

    def step(self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Bias of one position.

        Args:
            previous: `[B]` int64, the token drawn just before.
            hidden: `[B, H]`, the backbone's state at this position.
            state: `[B, r]`, zero at the first position; only the rnn head reads it.

        Returns:
            bias `[B, V]`, next state `[B, r]`.
        """
        embedded = F.embedding(previous, self.w1)
        if self.kind == "rnn":
            assert self.joint is not None
            z = torch.cat([state, embedded, hidden.to(embedded.dtype)], dim=-1)
            gate, candidate, output = F.linear(z, self.joint, self.joint_bias).chunk(3, dim=-1)
            gate = gate.sigmoid()
            return F.linear(output.tanh(), self.w2), gate * state + (1 - gate) * candidate.tanh()
        latent = F.silu(embedded) if self.activation == "silu" else embedded
        if self.kind == "gated":
            assert self.joint is not None
            z = torch.cat([hidden.to(embedded.dtype), embedded], dim=-1)
            latent = F.linear(z, self.joint, self.joint_bias).sigmoid() * latent
        return F.linear(latent, self.w2), state


@dataclass(frozen=True)
class ConfidenceHead:
    """`c_k = σ(w · [h_k ; W1[x_{k-1}]] + b)`; without `with_markov` there is no second half. `weight [1, H(+r)]`."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    with_markov: bool

    def __call__(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """`[B, γ, H]`, `[B, γ, r]` -> `[B, γ]` float32."""
        features = torch.cat([hidden, embedded.to(hidden.dtype)], dim=-1) if self.with_markov else hidden
        return F.linear(features.to(self.weight.dtype), self.weight, self.bias).squeeze(-1).float().sigmoid()


@dataclass(frozen=True)
class DraftBlock:
    """What one round's draft leaves for the scheduler and the accept.

    Attributes:
        tokens: `[B, γ]` int64.
        q: `[B, γ, V]` float32, the very probabilities `tokens` were drawn from; None when no row was sampled.
            Rows of greedy requests hold zeros.
        confidence: `[B, γ]` float32, or None without a confidence head.
        usable: `[B]` int64, leading positions whose logits were finite. What lies past them must not be verified.
    """

    tokens: torch.Tensor
    q: torch.Tensor | None
    confidence: torch.Tensor | None
    usable: torch.Tensor

    @classmethod
    def skipped(cls, batch_size: int, gamma: int, device: torch.device | str) -> DraftBlock:
        """The block of a round that did not run its draft: no position of it may be verified."""
        tokens = torch.zeros((batch_size, gamma), dtype=torch.int64, device=device)
        return cls(tokens, None, None, torch.zeros(batch_size, dtype=torch.int64, device=device))


def draft_block(
    base_logits: torch.Tensor,
    anchors: torch.Tensor,
    hidden: torch.Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: torch.Tensor | None,
    generator: torch.Generator | None = None,
) -> DraftBlock:
    """Draw `x_k ~ softmax((U_k + b_k) / T)` for k = 1..γ, each bias depending on the token before (report, section 3).

    Args:
        base_logits: `[B, γ, V]`, any float dtype, `U_k = lm_head(h_k)`.
        anchors: `[B]` int64, the last token the target emitted.
        hidden: `[B, γ, H]`, the backbone's hidden states `h_k`.
        temperatures: `[B]` float32, 0 for a row decoded by argmax; None when every row is.
        generator: source of fresh, independent uniforms for sampled rows.

    Raises:
        ValueError: shapes that do not agree; the message names the argument.
    """
    _check(base_logits, anchors, hidden, head, temperatures)
    batch_size, gamma = base_logits.shape[:2]
    q = None if temperatures is None else base_logits.new_zeros(base_logits.shape, dtype=torch.float32)
    usable = torch.ones(batch_size, dtype=torch.bool, device=base_logits.device)
    state = head.w1.new_zeros((batch_size, head.w1.shape[1]))
    previous, tokens, counts = anchors.long(), [], torch.zeros_like(anchors, dtype=torch.int64)
    inputs = []
    for k in range(gamma):
        inputs.append(previous)
        logits = base_logits[:, k].float()
        if k > 0 or head.first_position:
            bias, state = head.step(previous, hidden[:, k], state)
            logits = logits + bias.float()
        # -inf is a legitimate mask; NaN, +inf or a row without any finite entry is not something to draw from.
        peak = logits.amax(dim=-1)
        usable = usable & peak.isfinite() & ~logits.isnan().any(dim=-1)
        counts = counts + usable
        logits = torch.where(usable.unsqueeze(-1), logits, 0.0)
        previous = logits.argmax(dim=-1)
        if q is not None and temperatures is not None:
            sampled = (temperatures > 0).unsqueeze(-1)
            probabilities = torch.softmax(logits / torch.where(sampled, temperatures.unsqueeze(-1), 1.0), dim=-1)
            q[:, k] = torch.where(sampled, probabilities, 0.0)
            previous = torch.where(sampled.squeeze(-1), draw(probabilities, generator), previous)
        tokens.append(previous)
    confidence = None
    if confidence_head is not None:
        confidence = confidence_head(hidden, F.embedding(torch.stack(inputs, dim=1), head.w1))
    return DraftBlock(torch.stack(tokens, dim=1), q, confidence, counts)


def _check(
    base_logits: torch.Tensor,
    anchors: torch.Tensor,
    hidden: torch.Tensor,
    head: MarkovHead,
    temperatures: torch.Tensor | None,
) -> None:
    if base_logits.ndim != 3 or base_logits.shape[1] < 1:
        raise ValueError(f"base_logits: expected [B, gamma >= 1, V], got {tuple(base_logits.shape)}")
    batch_size, gamma, vocab_size = base_logits.shape
    for name, tensor, shape in (
        ("anchors", anchors, (batch_size,)),
        ("temperatures", anchors if temperatures is None else temperatures, (batch_size,)),
        ("head.w2", head.w2, (vocab_size, head.w1.shape[1])),
        ("hidden[:2]", hidden[..., 0] if hidden.ndim == 3 else hidden, (batch_size, gamma)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
