"""The sequential part of DSpark: heads that bias a position's logits by the token before it, and the confidence head.

Formulas: the DSpark report, "Markov head" and "confidence head". Module and parameter names are DeepSpec's, so that a
`state_dict` is a checkpoint.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoMarkov(nn.Module):
    """No head (DFlash): embeddings and latents of width 0, so that one formula serves every draft."""

    def __init__(self, draft_vocab_size: int) -> None:
        super().__init__()
        self.draft_vocab_size = draft_vocab_size

    @property
    def w2(self) -> Tensor:
        """[Vd, 0]."""
        return torch.zeros(self.draft_vocab_size, 0)

    def embed(self, previous: Tensor) -> Tensor:
        """int64 [...] -> [..., 0]."""
        return torch.zeros(*previous.shape, 0)

    def latents(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """[..., 0]."""
        return hidden[..., :0]

    def bias(self, latents: Tensor) -> Tensor:
        """[..., 0] -> zeros [..., Vd]."""
        return latents.new_zeros(*latents.shape[:-1], self.draft_vocab_size)

    def step(self, previous: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """As the heads' own."""
        return self.latents(previous, hidden), None


class VanillaMarkov(nn.Module):
    """`b_k = W2 · act(W1[x_{k-1}])`, `W1` [V, r] and `W2` [Vd, r], a row for each token that can be drafted."""

    def __init__(self, vocab_size: int, rank: int, activation: str = "none", draft_vocab_size: int = 0) -> None:
        super().__init__()
        if activation not in ("none", "silu"):
            raise ValueError(f"markov_activation {activation!r}: choose none or silu")
        self.activation = activation
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size or vocab_size, bias=False)

    @property
    def w2(self) -> Tensor:
        """[Vd, r]."""
        return self.markov_w2.weight

    def embed(self, previous: Tensor) -> Tensor:
        """`W1[x_{k-1}]`: previous int64 [...] -> [..., r]."""
        return self.markov_w1(previous)

    def latents(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """What `W2` projects, for all positions at once (teacher forcing).

        Args:
            previous: int64 [..., gamma], the token before each position.
            hidden: [..., gamma, H], the backbone's output.

        Returns:
            [..., gamma, r].
        """
        embedded = self.embed(previous)
        return F.silu(embedded) if self.activation == "silu" else embedded

    def bias(self, latents: Tensor) -> Tensor:
        """[..., r] -> [..., V]."""
        return self.markov_w2(latents)

    def step(self, previous: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One position while decoding: previous [R], hidden [R, H] -> latents [R, r] and the next state."""
        return self.latents(previous, hidden), state


class GatedMarkov(VanillaMarkov):
    """`b_k = W2 · (σ(Wg [h_k ; W1[x_{k-1}]] + bg) ⊙ act(W1[x_{k-1}]))`."""

    def __init__(
        self, vocab_size: int, rank: int, hidden_size: int, activation: str = "none", draft_vocab_size: int = 0
    ) -> None:
        super().__init__(vocab_size, rank, activation, draft_vocab_size)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def latents(self, previous: Tensor, hidden: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, self.embed(previous)], dim=-1)))
        return gate * super().latents(previous, hidden)


class RnnMarkov(VanillaMarkov):
    """`z = [s_{k-1} ; W1[x_{k-1}] ; h_k]`, `s_k = σ(g)⊙s_{k-1} + (1-σ(g))⊙tanh(c)`, `b_k = W2 · tanh(o)`, `s_0 = 0`."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int, draft_vocab_size: int = 0) -> None:
        super().__init__(vocab_size, rank, draft_vocab_size=draft_vocab_size)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def step(self, previous: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        embedded = self.embed(previous)
        state = torch.zeros_like(embedded) if state is None else state
        gate, candidate, output = self.joint_proj(torch.cat([state, embedded, hidden], dim=-1)).chunk(3, dim=-1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)

    def latents(self, previous: Tensor, hidden: Tensor) -> Tensor:
        state, outputs = None, []
        for k in range(previous.shape[-1]):
            output, state = self.step(previous[..., k], hidden[..., k, :], state)
            outputs.append(output)
        return torch.stack(outputs, dim=-2)


class ConfidenceHead(nn.Module):
    """Logit of `c_k = σ(w · [h_k ; W1[x_{k-1}]] + b)`; `W1` is left out where `with_markov` is false."""

    def __init__(self, hidden_size: int, rank: int, with_markov: bool = True) -> None:
        super().__init__()
        self.with_markov = with_markov
        self.proj = nn.Linear(hidden_size + (rank if with_markov else 0), 1)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """hidden [..., H], embedded [..., r] -> logits [...] in float32."""
        features = torch.cat([hidden, embedded.to(hidden.dtype)], dim=-1) if self.with_markov else hidden
        return F.linear(features.float(), self.proj.weight.float(), self.proj.bias.float()).squeeze(-1)


def build_markov(
    kind: str, vocab_size: int, rank: int, hidden_size: int, activation: str = "none", draft_vocab_size: int = 0
) -> VanillaMarkov | NoMarkov:
    """The head that a checkpoint's `markov_head_type` names; `draft_vocab_size` 0: the whole vocabulary.

    Raises:
        ValueError: an unknown kind, or an activation the kind does not take.
    """
    if rank == 0:
        return NoMarkov(draft_vocab_size or vocab_size)
    if kind == "vanilla":
        return VanillaMarkov(vocab_size, rank, activation, draft_vocab_size)
    if kind == "gated":
        return GatedMarkov(vocab_size, rank, hidden_size, activation, draft_vocab_size)
    if kind == "rnn":
        if activation != "none":
            raise ValueError("markov_activation applies to the vanilla and gated heads only, not to rnn")
        return RnnMarkov(vocab_size, rank, hidden_size, draft_vocab_size)
    raise ValueError(f"markov_head_type {kind!r}: choose vanilla, gated or rnn")
