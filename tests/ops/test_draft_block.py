"""The sequential loop against a float64 reference written from the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, HeadKind, MarkovHead, draft_block

V, H, R, GAMMA = 37, 6, 5, 4


def make_head(kind: HeadKind, activation: str = "none", first: bool = True, seed: int = 0) -> MarkovHead:
    g = torch.Generator().manual_seed(seed)
    rows, columns = {"vanilla": (0, 0), "gated": (R, H + R), "rnn": (3 * R, H + 2 * R)}[kind]
    joint = torch.randn(rows, columns, generator=g) if rows else None
    return MarkovHead(
        kind,
        torch.randn(V, R, generator=g),
        torch.randn(V, R, generator=g),
        joint,
        torch.randn(rows, generator=g) if rows else None,
        activation,  # type: ignore[arg-type]
        first,
    )


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def reference_logits(
    base: np.ndarray, anchor: int, hidden: np.ndarray, head: MarkovHead, tokens: list[int]
) -> np.ndarray:
    """`[γ, V]` float64 corrected logits of one request given the tokens drawn (algorithm, section 1, the table)."""
    w1, w2 = head.w1.double().numpy(), head.w2.double().numpy()
    state, previous, out = np.zeros(R), anchor, []
    for k in range(GAMMA):
        embedded = w1[previous]
        bias = np.zeros(V)
        if k > 0 or head.first_position:
            if head.kind == "rnn":
                z = np.concatenate([state, embedded, hidden[k]])
                gate, candidate, output = np.split(
                    head.joint.double().numpy() @ z + head.joint_bias.double().numpy(), 3
                )
                state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
                bias = w2 @ np.tanh(output)
            else:
                latent = embedded * sigmoid(embedded) if head.activation == "silu" else embedded
                if head.kind == "gated":
                    z = np.concatenate([hidden[k], embedded])
                    latent = sigmoid(head.joint.double().numpy() @ z + head.joint_bias.double().numpy()) * latent
                bias = w2 @ latent
        out.append(base[k] + bias)
        previous = tokens[k]
    return np.stack(out)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("first", [True, False])
def test_matches_the_reference(kind: HeadKind, activation: str, first: bool) -> None:
    head, g = make_head(kind, activation, first), torch.Generator().manual_seed(5)
    base, hidden = torch.randn(3, GAMMA, V, generator=g), torch.randn(3, GAMMA, H, generator=g)
    base[0, 1, 3], base[1, 0, 4] = 1e4, float("-inf")
    anchors, temperatures = torch.tensor([0, 5, 36]), torch.tensor([0.0, 0.7, 1.3])
    block = draft_block(base, anchors, hidden, head, None, temperatures, g)
    assert block.usable.tolist() == [GAMMA] * 3
    for r in range(3):
        tokens = block.tokens[r].tolist()
        logits = reference_logits(base[r].double().numpy(), int(anchors[r]), hidden[r].double().numpy(), head, tokens)
        if temperatures[r] == 0:
            assert tokens == logits.argmax(axis=1).tolist()
            assert not block.q[r].any()
            continue
        scaled = logits / float(temperatures[r])
        q = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        q /= q.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(block.q[r].numpy(), q, rtol=2e-4, atol=1e-7)
        assert all(q[k, token] > 0 for k, token in enumerate(tokens))


def test_confidence_sees_the_previous_token_only() -> None:
    head, g = make_head("vanilla"), torch.Generator().manual_seed(1)
    confidence = ConfidenceHead(torch.randn(1, H + R, generator=g), torch.randn(1, generator=g), with_markov=True)
    base, hidden = torch.randn(2, GAMMA, V, generator=g), torch.randn(2, GAMMA, H, generator=g)
    anchors = torch.tensor([3, 4])
    block = draft_block(base, anchors, hidden, head, confidence, None)
    for r in range(2):
        for k in range(GAMMA):
            previous = int(anchors[r]) if k == 0 else int(block.tokens[r, k - 1])
            features = torch.cat([hidden[r, k], head.w1[previous]])
            expected = torch.sigmoid(confidence.weight[0] @ features + confidence.bias[0])
            torch.testing.assert_close(block.confidence[r, k], expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_logits_end_the_usable_prefix(bad: float) -> None:
    head, g = make_head("vanilla"), torch.Generator().manual_seed(2)
    base = torch.randn(2, GAMMA, V, generator=g)
    base[1, 2, 7] = bad
    block = draft_block(base, torch.tensor([0, 1]), torch.zeros(2, GAMMA, H), head, None, torch.ones(2), g)
    assert block.usable.tolist() == [GAMMA, 2]


def test_accepts_bf16_strides_and_an_empty_batch() -> None:
    head, g = make_head("gated"), torch.Generator().manual_seed(2)
    wide = torch.randn(2, GAMMA, V + 3, generator=g).bfloat16()
    block = draft_block(wide[..., :V], torch.tensor([0, 1]), torch.randn(2, GAMMA, H, generator=g), head, None, None)
    assert block.tokens.shape == (2, GAMMA)
    empty = draft_block(torch.zeros(0, GAMMA, V), torch.zeros(0).long(), torch.zeros(0, GAMMA, H), head, None, None)
    assert empty.tokens.shape == (0, GAMMA)
    assert isinstance(empty, DraftBlock)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("base_logits", lambda a: a | {"base_logits": torch.zeros(2, V)}),
        ("anchors", lambda a: a | {"anchors": torch.zeros(3).long()}),
        ("temperatures", lambda a: a | {"temperatures": torch.zeros(1)}),
        ("head.w2", lambda a: a | {"base_logits": torch.zeros(2, GAMMA, V + 1)}),
        ("hidden", lambda a: a | {"hidden": torch.zeros(2, GAMMA + 1, H)}),
    ],
)
def test_wrong_shapes_are_named(name: str, change) -> None:
    arguments = {
        "base_logits": torch.zeros(2, GAMMA, V),
        "anchors": torch.zeros(2).long(),
        "hidden": torch.zeros(2, GAMMA, H),
        "head": make_head("vanilla"),
        "confidence_head": None,
        "temperatures": torch.ones(2),
    }
    with pytest.raises(ValueError, match=name):
        draft_block(**change(arguments))
