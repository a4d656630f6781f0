"""The torch draft: heads against their formulas, attention against a naive one, context against recomputation."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_dspark.model.draft import DraftShape, DSparkDraft, grouped_attention, rotary, rotate
from sglang_dspark.model.heads import ConfidenceHead, build_markov

V, R, H = 20, 6, 8


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_parallel_latents_equal_steps(kind: str) -> None:
    torch.manual_seed(0)
    head = build_markov(kind, V, R, H)
    previous, hidden = torch.randint(0, V, (3, 4)), torch.randn(3, 4, H)
    parallel = head.latents(previous, hidden)
    state = None
    for k in range(4):
        step, state = head.step(previous[:, k], hidden[:, k], state)
        torch.testing.assert_close(step, parallel[:, k])
    assert head.bias(parallel).shape == (3, 4, V)


def test_formulas() -> None:
    torch.manual_seed(0)
    previous, hidden = torch.tensor([3]), torch.randn(1, H)
    vanilla = build_markov("vanilla", V, R, H, "silu")
    e = vanilla.markov_w1.weight[3]
    bias = vanilla.bias(vanilla.latents(previous, hidden))[0]
    torch.testing.assert_close(bias, vanilla.markov_w2.weight @ (e * e.sigmoid()))
    gated = build_markov("gated", V, R, H)
    e = gated.markov_w1.weight[3]
    gate = torch.sigmoid(gated.gate_proj.weight @ torch.cat([hidden[0], e]) + gated.gate_proj.bias)
    torch.testing.assert_close(gated.latents(previous, hidden)[0], gate * e)
    rnn = build_markov("rnn", V, R, H)
    e = rnn.markov_w1.weight[3]
    z = rnn.joint_proj.weight @ torch.cat([torch.zeros(R), e, hidden[0]]) + rnn.joint_proj.bias
    latents, state = rnn.step(previous, hidden, None)
    torch.testing.assert_close(latents[0], torch.tanh(z[2 * R :]))
    assert state is not None
    torch.testing.assert_close(state[0], (1 - torch.sigmoid(z[:R])) * torch.tanh(z[R : 2 * R]))
    confidence = ConfidenceHead(H, R)
    expected = confidence.proj.weight[0] @ torch.cat([hidden[0], e]) + confidence.proj.bias[0]
    torch.testing.assert_close(confidence(hidden[0], e), expected)


@pytest.mark.parametrize(("kind", "activation"), [("lstm", "none"), ("rnn", "silu"), ("vanilla", "gelu")])
def test_unknown_heads(kind: str, activation: str) -> None:
    with pytest.raises(ValueError):
        build_markov(kind, V, R, H, activation)


def test_attention_against_naive() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    seen = torch.rand(2, 3, 5) > 0.4
    seen[..., 0] = True
    bias = torch.zeros(2, 3, 5).masked_fill(~seen, -torch.inf)
    found, unmasked = grouped_attention(q, k, v, bias), grouped_attention(q, k, v, None)
    for s in range(2):
        for i in range(3):
            for head in range(4):
                scores = (k[s, :, head // 2] @ q[s, i, head]) / math.sqrt(8)
                torch.testing.assert_close(unmasked[s, i, head], scores.softmax(0) @ v[s, :, head // 2])
                scores = scores.masked_fill(~seen[s, i], -torch.inf)
                torch.testing.assert_close(found[s, i, head], scores.softmax(0) @ v[s, :, head // 2])


def test_rope_depends_on_distance_only() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> torch.Tensor:
        at = [rotary(torch.tensor([[p]]), 8, 1e4) for p in (i, j)]
        return (rotate(q, at[0]) * rotate(k, at[1])).sum()

    torch.testing.assert_close(score(7, 4), score(103, 100), rtol=1e-4, atol=1e-4)


def shape(**changes: object) -> DraftShape:
    values: dict[str, object] = {
        "vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 4, "intermediate_size": 24, "block_size": 3, "target_layer_ids": (0, 1), "mask_token_id": 0,
        "markov_rank": R,
    }  # fmt: skip
    return DraftShape(**{**values, **changes})  # type: ignore[arg-type]


def test_context_grows_piece_by_piece() -> None:
    """Injecting a round's tokens later gives the keys and values of injecting all at once."""
    torch.manual_seed(0)
    draft = DSparkDraft(shape())
    features, where = torch.randn(1, 9, 32), torch.arange(9).unsqueeze(0)
    whole = draft.context(features, where)
    parts = [draft.context(features[:, s], where[:, s]) for s in (slice(0, 4), slice(4, 9))]
    for layer in range(2):
        for side in range(2):
            torch.testing.assert_close(torch.cat([p[layer][side] for p in parts], 1), whole[layer][side])


def test_block_attention_is_not_causal() -> None:
    torch.manual_seed(0)
    draft = DSparkDraft(shape())
    context = draft.context(torch.randn(1, 5, 32), torch.arange(5).unsqueeze(0))
    positions = torch.arange(5, 8).unsqueeze(0)
    embeddings = torch.randn(1, 3, 16)
    before = draft.block(embeddings, positions, context, None)
    embeddings[0, 2] += 1
    assert not torch.allclose(before[0, 0], draft.block(embeddings, positions, context, None)[0, 0])
