"""The fused loss against a naive one in float64 with autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.train.loss import (
    LossWeights,
    confidence_loss,
    position_weights,
    vocabulary_loss,
    vocabulary_sample,
)

N, H, R, V = 9, 6, 4, 31


def inputs(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    double = torch.float64
    return {
        "hidden": torch.randn(N, H, dtype=double, requires_grad=True),
        "latents": torch.randn(N, R, dtype=double, requires_grad=True),
        "w2": torch.randn(V, R, dtype=double, requires_grad=True),
        "lm_head": torch.randn(V, H, dtype=double),
        "p": (2 * torch.randn(N, V, dtype=double)).softmax(-1),
        "labels": torch.randint(0, V, (N,)),
        "row_weights": position_weights(torch.arange(N) % 3, 2.0).double() / N,
    }


def naive(x: dict[str, Tensor], weights: LossWeights, kept: int) -> tuple[Tensor, Tensor]:
    q = F.softmax(x["hidden"] @ x["lm_head"].T + x["latents"] @ x["w2"].T, -1)
    cross_entropy = -q.gather(1, x["labels"].unsqueeze(1)).squeeze(1).log()
    top, ids = x["p"].topk(kept, -1)
    q_top = q.gather(1, ids)
    l1 = (top - q_top).abs().sum(-1)
    if kept < V:
        l1 = l1 + ((1 - top.sum(-1)) - (1 - q_top.sum(-1))).abs()
    per_row = weights.cross_entropy * cross_entropy + weights.total_variation * l1
    return (x["row_weights"] * per_row).sum(), l1


@pytest.mark.parametrize("kept", [V, 5, 1])
@pytest.mark.parametrize("chunk", [4, 100])
def test_value_and_gradients(kept: int, chunk: int) -> None:
    weights = LossWeights(0.3, 0.7)
    x = inputs()
    top, ids = x["p"].topk(kept, -1)
    shared = (ids, top, x["labels"], x["row_weights"], weights)
    loss, l1, hit = vocabulary_loss(x["hidden"], x["latents"], x["w2"], x["lm_head"], *shared, chunk=chunk)
    leaves = [x["hidden"], x["latents"], x["w2"]]
    found = torch.autograd.grad(3 * loss, leaves)
    expected, expected_l1 = naive(x, weights, kept)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(l1, expected_l1.detach())
    for a, b in zip(found, torch.autograd.grad(3 * expected, leaves), strict=True):
        torch.testing.assert_close(a, b)
    logits = x["hidden"] @ x["lm_head"].T + x["latents"] @ x["w2"].T
    assert hit.tolist() == (logits.argmax(-1) == x["labels"]).tolist()


def test_few_tokens_bound_the_distance_from_below() -> None:
    x = inputs()
    exact = naive(x, LossWeights(), V)[1]
    for kept in (1, 5, 20):
        assert (naive(x, LossWeights(), kept)[1] <= exact + 1e-12).all()


def test_vocabulary_sample_holding_everything_is_exact() -> None:
    x = inputs()
    top, ids = x["p"].topk(3, -1)
    leaves = [x["hidden"], x["latents"], x["w2"]]
    arguments = (*leaves, x["lm_head"], ids, top, x["labels"], x["row_weights"], LossWeights())
    sample = vocabulary_sample(ids, x["labels"], V, V, torch.Generator().manual_seed(0))
    assert sample[0].tolist() == list(range(V))
    whole, part = vocabulary_loss(*arguments), vocabulary_loss(*arguments, sample=sample)
    torch.testing.assert_close(part[0], whole[0])
    for a, b in zip(torch.autograd.grad(part[0], leaves), torch.autograd.grad(whole[0], leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_vocabulary_sample_keeps_the_normaliser() -> None:
    torch.manual_seed(0)
    size, logits = 4000, torch.randn(4000)
    ids, labels = torch.randint(0, size, (6, 5)), torch.randint(0, size, (6,))
    sums = []
    for seed in range(60):
        kept, offset = vocabulary_sample(ids, labels, size, 500, torch.Generator().manual_seed(seed))
        assert torch.isin(ids, kept).all()
        assert torch.isin(labels, kept).all()
        assert len(kept) == len(set(ids.flatten().tolist()) | set(labels.tolist())) + 500
        sums.append((logits[kept] + offset).exp().sum())
    found = torch.stack(sums)
    assert abs(float(found.mean() / logits.exp().sum()) - 1) < 0.02


def test_low_precision_follows() -> None:
    x = inputs()
    top, ids = x["p"].topk(5, -1)
    low = [x[n].detach().float().requires_grad_() for n in ("hidden", "latents", "w2")]
    head = x["lm_head"].bfloat16()
    rest = (ids, top.float(), x["labels"], x["row_weights"].float(), LossWeights())
    loss, _, _ = vocabulary_loss(low[0], low[1], low[2], head, *rest)
    expected, _ = naive(x, LossWeights(), 5)
    assert abs(loss.item() - expected.item()) < 0.05
    found = torch.autograd.grad(loss, low)
    for a, b in zip(found, torch.autograd.grad(expected, [x["hidden"], x["latents"], x["w2"]]), strict=True):
        assert float((a - b).norm() / b.norm()) < 0.1
        assert a.dtype == torch.float32


def test_position_weights() -> None:
    found = position_weights(torch.tensor([0, 1, 6]), 4.0)
    torch.testing.assert_close(found, torch.tensor([0.0, -0.25, -1.5]).exp())


def test_confidence_loss_is_least_at_alpha() -> None:
    l1 = torch.tensor([0.4, 1.2])
    weights = torch.tensor([0.5, 0.5])
    logits = torch.logit(1 - 0.5 * l1).requires_grad_()
    (gradient,) = torch.autograd.grad(confidence_loss(logits, l1, weights), logits)
    assert float(gradient.abs().max()) < 1e-6
