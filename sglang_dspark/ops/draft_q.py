"""What the accept needs to know about q, the distributions the draft's tokens were drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseQ:
    """q over C candidates per position: exactly the numbers the tokens were drawn from.

    Attributes:
        ids: `[B, γ, C]` int32, distinct in each row.
        probs: `[B, γ, C]` float32; zeros in rows decoded by argmax and in rows that are not usable.
    """

    ids: Tensor
    probs: Tensor

    @classmethod
    def full(cls, probs: Tensor) -> SparseQ:
        """Every token is a candidate: `[B, γ, V]` float32."""
        return cls(torch.arange(probs.shape[-1], dtype=torch.int32, device=probs.device).expand_as(probs), probs)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """`[B, γ]` float32, `q_k(x_k)`; 0 for a token that is no candidate."""
        return torch.where(self.ids == tokens.unsqueeze(-1), self.probs, 0.0).sum(dim=-1)

    def rows(self, request: Tensor, position: Tensor, vocab_size: int) -> Tensor:
        """`[N, V]` float32, whole rows of q."""
        ids, probs = self.ids[request, position].long(), self.probs[request, position]
        return probs.new_zeros((len(ids), vocab_size)).scatter_(1, ids, probs)

    def native(self) -> tuple[Tensor, Tensor]:
        """As the extension takes it."""
        return self.ids.contiguous(), self.probs.contiguous()


@dataclass(frozen=True)
class DenseQ:
    """q over the whole vocabulary, `q(v) = exp((U_v + w2_v · latent - shift) / T - log_sum)`.

    Nothing of the size of the vocabulary was stored; the accept recomputes the rows it needs by the routine that drew.

    Attributes:
        base_logits: `[B, γ, V]`, the draft's own input, unchanged since.
        w2: `[V, r]`.
        first_position: whether position 0 has a bias.
        latents: `[B, γ, r padded]` float32, in an order of the extension's own.
        shifts, log_sums, token_probs: `[B, γ]` float32.
        isa: the instruction set it was computed with.
    """

    base_logits: Tensor
    w2: Tensor
    first_position: bool
    latents: Tensor
    shifts: Tensor
    log_sums: Tensor
    token_probs: Tensor
    isa: str

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """`[B, γ]` float32, `q_k(x_k)` of the drawn tokens."""
        return self.token_probs

    def native(self) -> tuple[Tensor | bool, ...]:
        """As the extension takes it."""
        return (
            self.base_logits, self.w2, self.first_position, self.latents, self.shifts, self.log_sums, self.token_probs
        )  # fmt: skip


DraftQ = SparseQ | DenseQ
