"""The sequential loops against the float64 reference, and token for token against torch with the same noise."""

from __future__ import annotations

from functools import partial

import emulated
import numpy as np
import pytest
import torch

from sglang_dspark.ops import cuda
from sglang_dspark.ops.draft_block import draft_block
from sglang_dspark.ops.draft_q import DenseQ, SparseQ
from sglang_dspark.ops.draft_torch import draft_block_torch
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.reference_draft import reference_draft

HIDDEN = 40


class Case:
    def __init__(
        self,
        batch: int,
        gamma: int,
        vocab: int,
        rank: int,
        kind: str = "vanilla",
        activation: str = "none",
        first: bool = True,
        logits: torch.dtype = torch.float32,
        weights: torch.dtype = torch.float32,
        temperatures: tuple[float, ...] = (0.0, 0.7, 1.0),
    ) -> None:
        g = torch.Generator().manual_seed(8)
        self.base = emulated.make_logits(batch, gamma, vocab, logits)
        self.anchors = torch.randint(0, vocab, (batch,), generator=g)
        self.hidden = torch.randn(batch, gamma, HIDDEN, generator=g).to(weights)
        self.head: MarkovHead = emulated.make_head(kind, vocab, rank, HIDDEN, weights, activation, first)
        self.confidence: ConfidenceHead = emulated.make_confidence(HIDDEN, rank)
        self.temperatures = torch.tensor((temperatures * batch)[:batch])
        self.noise = emulated.make_noise(batch)

    def arguments(self) -> tuple:
        return (
            self.base, self.anchors, self.hidden, self.head, self.confidence, self.temperatures, self.noise,
        )  # fmt: skip

    def run(self, support: int | None, orders: tuple[int, ...], **filters: torch.Tensor) -> cuda.CudaDraft:
        def once() -> cuda.CudaDraft:
            if support is None:
                return cuda.draft_dense(*self.arguments())
            return cuda.draft_sparse(*self.arguments(), support, **filters)

        return emulated.in_every_order(once, orders)

    def check(self, out: cuda.CudaDraft, support: int | None) -> None:
        self.check_against_torch(out, support)
        # The CPU extension (or, for weights it does not cover, torch again): the same noise, the same tokens.
        block = draft_block(*self.arguments(), support=support)
        assert out.usable.tolist() == block.usable.tolist()
        assert out.tokens.tolist() == block.tokens.tolist()
        for r in range(len(self.anchors)):
            self.check_against_float64(out, r, support)

    def check_against_torch(self, out: cuda.CudaDraft, support: int | None) -> None:
        tokens, _, confidence, usable = draft_block_torch(*self.arguments(), support)
        assert out.usable.tolist() == usable.tolist()
        for r, n in enumerate(usable.tolist()):
            assert out.tokens[r, :n].tolist() == tokens[r, :n].tolist()
            assert not out.tokens[r, n:].any()
            torch.testing.assert_close(out.confidence[r, :n], confidence[r, :n], rtol=1e-4, atol=1e-6)
            assert not out.confidence[r, n:].any()

    def check_against_float64(self, out: cuda.CudaDraft, r: int, support: int | None) -> None:
        base, hidden = self.base[r].double().numpy(), self.hidden[r].double().numpy()
        temperature = float(self.temperatures[r])
        noise = emulated.noise_of(self.noise, r)
        tokens = out.tokens[r].tolist()
        with np.errstate(invalid="ignore"):
            reference = reference_draft(
                base, int(self.anchors[r]), hidden, self.head, tokens, temperature, noise, support, self.confidence
            )
        assert out.usable[r] == reference.usable
        for k in range(reference.usable):
            at = int(np.searchsorted(reference.ids[k], tokens[k]))
            assert reference.keys[k][at] >= reference.keys[k].max() - 1e-3
            np.testing.assert_allclose(float(out.confidence[r, k]), reference.confidence[k], rtol=1e-4)
            if isinstance(out.q, SparseQ):
                assert out.q.ids[r, k].tolist() == reference.ids[k].tolist()
                expected = reference.probs[k] if temperature else np.zeros(support)
                np.testing.assert_allclose(out.q.probs[r, k].numpy(), expected, rtol=2e-4, atol=1e-7)
            elif isinstance(out.q, DenseQ):
                expected = reference.probs[k][tokens[k]] if temperature else 0.0
                np.testing.assert_allclose(float(out.q.token_probs[r, k]), expected, rtol=2e-4, atol=1e-7)


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES = [
    partial(Case, batch=3, gamma=7, vocab=1009, rank=24, kind="vanilla"),
    partial(Case, batch=3, gamma=7, vocab=1009, rank=24, kind="vanilla", activation="silu", weights=BF16, logits=BF16),
    partial(Case, batch=3, gamma=7, vocab=1009, rank=20, kind="gated", weights=BF16),  # rows without 16-byte alignment
    partial(Case, batch=3, gamma=3, vocab=1016, rank=24, kind="gated", activation="silu", logits=F16, first=False),
    partial(Case, batch=3, gamma=7, vocab=1009, rank=24, kind="rnn", weights=F16),
    partial(Case, batch=1, gamma=1, vocab=1009, rank=256, kind="vanilla", weights=BF16, temperatures=(1.0,)),
    partial(Case, batch=1, gamma=2, vocab=1016, rank=256, kind="rnn", temperatures=(0.01,)),  # two chunks of float32
    partial(Case, batch=2, gamma=2, vocab=5000, rank=300, kind="vanilla", weights=BF16, temperatures=(0.7, 100.0)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.keywords.values()))
def test_sparse(case: partial[Case]) -> None:
    made = case()
    made.check(made.run(64, (0, 1)), 64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.keywords.values()))
def test_dense(case: partial[Case]) -> None:
    made = case()
    made.check(made.run(None, (0, 1) if len(made.anchors) == 1 else (5,)), None)


@pytest.mark.parametrize("support", [None, 48])
def test_requests_end_where_the_draft_is_not_finite(support: int | None) -> None:
    made = Case(batch=3, gamma=4, vocab=1009, rank=24, temperatures=(0.0, 1.0, 1.0))
    made.base[0, 2, 100] = float("nan")
    made.base[1, 0, 1] = float("inf")
    made.base[2, 3] = float("-inf")
    out = made.run(support, (0, 3))
    assert out.usable.tolist() == [2, 0, 3]
    made.check(out, support)


@pytest.mark.parametrize("support", [None, 48])
def test_a_weight_that_is_not_finite_spoils_what_it_touches(support: int | None) -> None:
    made = Case(batch=2, gamma=3, vocab=1009, rank=24, temperatures=(0.0, 1.0))
    made.head.w2[5, 3] = float("nan")  # token 5 is a candidate everywhere
    assert made.run(support, (2,)).usable.tolist() == [0, 0]


def test_sparse_filters() -> None:
    made = Case(batch=3, gamma=4, vocab=1009, rank=24, temperatures=(1.0, 0.7, 0.0))
    words = (1009 + 31) // 32
    g = torch.Generator().manual_seed(1)
    filters = {
        "top_k": torch.tensor([5, 40, 3]),
        "top_p": torch.tensor([1.0, 0.6, 0.1]),
        "mask": torch.randint(-(2**31), 2**31, (3, 4, words), generator=g, dtype=torch.int64).to(torch.int32),
    }
    for names in (("top_k",), ("top_p",), ("mask",), ("top_k", "top_p", "mask")):
        chosen = {name: filters[name] for name in names}
        out = made.run(48, (0, 2), **chosen)
        tokens, q, _, usable = draft_block_torch(*made.arguments(), 48, **chosen)
        assert out.usable.tolist() == usable.tolist()
        assert out.tokens.tolist() == tokens.tolist()
        torch.testing.assert_close(out.q.probs, torch.where(made.temperatures.view(-1, 1, 1) > 0, q.probs, 0.0))


def test_the_rest_of_the_batch_changes_nothing() -> None:
    made = Case(batch=3, gamma=3, vocab=1009, rank=24, temperatures=(1.0, 1.0, 1.0))
    together = made.run(48, (1,))
    alone = Case(batch=3, gamma=3, vocab=1009, rank=24, temperatures=(1.0, 1.0, 1.0))
    for name in ("base", "anchors", "hidden", "temperatures"):
        setattr(alone, name, getattr(made, name)[2:3])
    alone.noise = type(made.noise)(made.noise.seed, made.noise.streams[2:3], made.noise.rounds[2:3])
    assert torch.equal(alone.run(48, (2,)).q.probs[0], together.q.probs[2])
    assert torch.equal(alone.run(None, (2,)).tokens[0], made.run(None, (1,)).tokens[2])
