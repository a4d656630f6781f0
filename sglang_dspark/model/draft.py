"""The DSpark draft in plain torch: a Qwen3-style backbone over injected context, and its heads.

Used for training and as the reference for what the engine computes; the engine serves the same checkpoint with its
own kernels. Layout: `sample_from_anchor`, so slot 0 of a block holds the anchor token and predicts the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sglang_dspark.model.draft_vocabulary import DraftVocabulary
from sglang_dspark.model.heads import ConfidenceHead, NoMarkov, VanillaMarkov, build_markov


@dataclass(frozen=True)
class DraftShape:
    """Sizes of a draft; the field names are those of its `config.json`.

    `markov_rank` 0 is DFlash, a draft without sequential head. `draft_vocab_size` 0: it can propose any token.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int
    markov_head_type: str = "vanilla"
    markov_activation: str = "none"
    rms_norm_eps: float = 1e-5
    rope_theta: float = 100000.0
    draft_vocab_size: int = 0
    confidence_head_with_markov: bool = True

    def __post_init__(self) -> None:
        if self.markov_rank == 0:  # there is no embedding for the confidence head to read
            object.__setattr__(self, "confidence_head_with_markov", False)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float()).to(x.dtype)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [..., 1, head_dim], for rotate-half RoPE at `positions` [...]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angle = positions.float().unsqueeze(-1) * theta**-exponent
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(-2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to x [..., T, heads, head_dim]."""
    cos, sin = cos_sin
    low, high = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat([-high, low], dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        hidden = shape.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)

    def keys_values(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x [..., T, H] -> keys (normed, rotated) and values, [..., T, kv_heads, head_dim]."""
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        return rotate(self.k_norm(k), cos_sin), v

    def forward(
        self, x: Tensor, cos_sin: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], bias: Tensor | None
    ) -> Tensor:
        """x [S, Q, H], context keys and values [S, C, kv_heads, head_dim], bias [S, Q, C + Q] -> [S, Q, H]."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))), cos_sin)
        k, v = self.keys_values(x, cos_sin)
        k, v = torch.cat([context[0].to(k.dtype), k], dim=1), torch.cat([context[1].to(v.dtype), v], dim=1)
        return self.o_proj(grouped_attention(q.to(v.dtype), k, v, bias).flatten(-2))


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads: q [S, Q, heads, D], k and v [S, T, kv_heads, D], bias [S, Q, T].

    The heads of a group become rows of one product, so that keys are not repeated; on a CPU, forward and backward
    take half the time of `scaled_dot_product_attention` with a mask.
    """
    rows, queries, heads, size = q.shape
    keys, kv_heads = k.shape[1:3]
    groups = heads // kv_heads
    q = q.view(rows, queries, kv_heads, groups, size).permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, -1, size)
    k, v = (t.transpose(1, 2).reshape(rows * kv_heads, keys, size) for t in (k, v))
    if bias is None:
        scores = torch.bmm(q, k.mT) * size**-0.5
    else:
        tiled = bias.to(q.dtype).view(rows, 1, 1, queries, keys).expand(-1, kv_heads, groups, -1, -1)
        scores = torch.baddbmm(tiled.reshape(rows * kv_heads, -1, keys), q, k.mT, alpha=size**-0.5)
    mixed = torch.bmm(scores.softmax(-1), v).view(rows, kv_heads, groups, queries, size)
    return mixed.permute(0, 3, 1, 2, 4).reshape(rows, queries, heads, size)


class MLP(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, cos_sin: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], bias: Tensor | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos_sin, context, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


ContextKV = list[tuple[Tensor, Tensor]]


class DSparkDraft(nn.Module):
    """Backbone, Markov head and confidence head. Embedding and lm_head are the target's and stay outside."""

    def __init__(self, shape: DraftShape, vocabulary: DraftVocabulary | None = None) -> None:
        """`vocabulary` is read where `shape` reduces it; without it, it has to come with the weights."""
        super().__init__()
        self.shape = shape
        if shape.draft_vocab_size:
            offsets = torch.zeros(shape.draft_vocab_size, dtype=torch.int64)
            self.register_buffer("d2t", offsets if vocabulary is None else vocabulary.offsets)
        hidden = shape.hidden_size
        self.fc = nn.Linear(len(shape.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.markov_head: VanillaMarkov | NoMarkov = build_markov(
            shape.markov_head_type, shape.vocab_size, shape.markov_rank, hidden, shape.markov_activation,
            shape.draft_vocab_size,
        )  # fmt: skip
        self.confidence_head = ConfidenceHead(hidden, shape.markov_rank, shape.confidence_head_with_markov)

    @property
    def vocabulary(self) -> DraftVocabulary | None:
        """The tokens it can propose; None: all."""
        if not self.shape.draft_vocab_size:
            return None
        offsets = self.get_buffer("d2t")
        return DraftVocabulary.from_offsets(offsets, self.shape.vocab_size, "draft checkpoint")

    def lm_head(self, target_lm_head: Tensor) -> Tensor:
        """The target's rows of the tokens it can propose: [V, H] -> [Vd, H]."""
        vocabulary = self.vocabulary
        return target_lm_head if vocabulary is None else target_lm_head[vocabulary.ids]

    def context(self, features: Tensor, positions: Tensor) -> ContextKV:
        """Keys and values that the target's hidden states inject, per layer.

        Args:
            features: [S, C, K*H], outputs of the K layers `target_layer_ids`, concatenated in that order.
            positions: int64 [S, C], absolute positions.
        """
        injected = self.hidden_norm(self.fc(features))
        cos_sin = rotary(positions, self.shape.head_dim, self.shape.rope_theta)
        return [layer.self_attn.keys_values(injected, cos_sin) for layer in self.layers]  # type: ignore[union-attr, operator]

    def block(self, embeddings: Tensor, positions: Tensor, context: ContextKV, mask: Tensor | None) -> Tensor:
        """The parallel part: one forward over blocks.

        Args:
            embeddings: [S, Q, H], target embeddings of `[anchor, MASK, ..., MASK]`, Q = blocks * gamma.
            positions: int64 [S, Q]; the anchor sits at its own absolute position.
            context: from `context`, C entries per sequence.
            mask: bool [S, 1, Q, C + Q], true where a query may look; None lets everything be seen.

        Returns:
            Hidden states [S, Q, H], final norm applied: `lm_head` of them are the base logits.
        """
        cos_sin = rotary(positions, self.shape.head_dim, self.shape.rope_theta)
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf).squeeze(1)
        x = embeddings
        for layer, injected in zip(self.layers, context, strict=True):
            x = layer(x, cos_sin, injected, bias)
        return self.norm(x)
