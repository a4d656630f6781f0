"""The accept against the float64 reference with the same noise, and its distribution."""

from __future__ import annotations

import emulated
import numpy as np
import pytest
import torch

from sglang_dspark.ops import cuda
from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.reference_accept import reference_accept
from sglang_dspark.ops.reference_draft import reference_draft

GAMMA, RANK, HIDDEN = 5, 24, 16


def start_of(lengths: torch.Tensor) -> torch.Tensor:
    return (lengths + 1).cumsum(0) - lengths - 1


class Round:
    def __init__(self, batch: int, vocab: int, dtype: torch.dtype, temperatures: tuple[float, ...], form: str) -> None:
        g = torch.Generator().manual_seed(batch)
        self.noise = emulated.make_noise(batch)
        self.base = emulated.make_logits(batch, GAMMA, vocab, torch.float32)
        self.head = emulated.make_head("vanilla", vocab, RANK, HIDDEN, torch.bfloat16)
        self.hidden = torch.randn(batch, GAMMA, HIDDEN, generator=g)
        self.anchors = torch.randint(0, vocab, (batch,), generator=g)
        self.temperatures = torch.tensor((temperatures * batch)[:batch])
        self.form = form
        arguments = (self.base, self.anchors, self.hidden, self.head, None, self.temperatures, self.noise)
        self.draft = cuda.draft_dense(*arguments) if form == "dense" else cuda.draft_sparse(*arguments, 48)
        self.lengths = torch.randint(0, GAMMA + 1, (batch,), generator=g)
        self.lengths[0] = GAMMA
        self.start = start_of(self.lengths)
        self.logits = torch.empty(int((self.lengths + 1).sum()) + 1, vocab)
        self.logits[-1] = float("nan")  # belongs to no request
        self.q = [self.q_of(r) for r in range(batch)]
        for r in range(batch):
            for k in range(int(self.lengths[r]) + 1):
                # Near the draft's own distribution, so that some positions pass and some do not.
                near = np.log(np.maximum(self.q[r][min(k, GAMMA - 1)], 1e-7)) * max(float(self.temperatures[r]), 1.0)
                self.logits[self.start[r] + k] = torch.from_numpy(near) + torch.randn(vocab, generator=g) * 0.5
        self.logits = self.logits.to(dtype)

    def q_of(self, r: int) -> np.ndarray:
        q = np.zeros((GAMMA, self.base.shape[2]))
        reference = reference_draft(
            self.base[r].double().numpy(), int(self.anchors[r]), self.hidden[r].double().numpy(), self.head,
            self.draft.tokens[r].tolist(), float(self.temperatures[r]), emulated.noise_of(self.noise, r),
            None if self.form == "dense" else 48,
        )  # fmt: skip
        for k in range(reference.usable):
            q[k, reference.ids[k]] = reference.probs[k]
        return q

    def run(self, probabilities: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        q = None if self.form == "none" else self.draft.q
        arguments = (self.logits, probabilities, self.draft.tokens, self.draft.usable, q, self.start, self.lengths)
        orders = (0, 7) if self.form == "dense" else emulated.ORDERS
        return emulated.in_every_order(lambda: cuda.accept(*arguments, self.temperatures, self.noise), orders)

    def check(self, out: tuple[torch.Tensor, ...], probabilities: torch.Tensor | None = None) -> int:
        tokens, counts, last = out
        certain = 0
        for r in range(len(self.lengths)):
            rows = slice(int(self.start[r]), int(self.start[r] + self.lengths[r]) + 1)
            temperature = float(self.temperatures[r])
            p = None if probabilities is None else probabilities[rows].double().numpy()
            emitted, margin = reference_accept(
                self.logits[rows].double().numpy(), self.draft.tokens[r].tolist(),
                None if self.form == "none" or temperature == 0 else self.q[r], int(self.draft.usable[r]), temperature,
                emulated.noise_of(self.noise, r), p,
            )  # fmt: skip
            assert last[r] == tokens[r, counts[r] - 1]
            assert not tokens[r, counts[r] :].any()
            if margin < 1e-5:
                continue
            certain += 1
            assert tokens[r, : counts[r]].tolist() == emitted
        if self.form == "sparse":
            self.check_against_the_cpu(out, probabilities)
        return certain

    def check_against_the_cpu(self, out: tuple[torch.Tensor, ...], probabilities: torch.Tensor | None) -> None:
        """Token for token, with the q of these kernels."""
        rows = RaggedRows.of(self.lengths.tolist(), "cpu")
        block = DraftBlock(self.draft.tokens, self.draft.q, None, self.draft.usable)
        p = None if probabilities is None else probabilities[: rows.total]
        theirs = accept(self.logits[: rows.total], block, rows, self.temperatures, self.noise, p)
        assert out[1].tolist() == theirs.counts.tolist()
        assert out[0].tolist() == theirs.tokens.tolist()


@pytest.mark.parametrize("form", ["sparse", "dense", "none"])
@pytest.mark.parametrize(
    ("batch", "vocab", "dtype"), [(1, 1009, torch.float32), (5, 1009, torch.bfloat16), (2, 5000, torch.float32)]
)
def test_tokens_are_those_of_the_reference(form: str, batch: int, vocab: int, dtype: torch.dtype) -> None:
    made = Round(batch, vocab, dtype, (1.0, 0.0, 0.7), form)
    assert made.check(made.run()) >= batch // 2


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_given_probabilities(form: str) -> None:
    made = Round(4, 1009, torch.float32, (1.0, 0.0, 0.7), form)
    p = torch.softmax(made.logits.float() / 0.9, dim=-1)
    p = torch.where(p >= p.topk(20).values[:, -1:], p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    assert made.check(made.run(p), p) >= 2


def test_positions_that_are_not_usable_end_in_a_fresh_draw() -> None:
    made = Round(4, 1009, torch.float32, (1.0, 0.0), "sparse")
    made.draft.usable[:] = torch.tensor([0, 0, 2, 1])
    made.check(made.run())


def test_equal_distributions_accept_everything() -> None:
    made = Round(2, 1009, torch.float32, (1.0,), "sparse")
    made.lengths[:] = GAMMA - 1
    made.start = start_of(made.lengths)
    rows = torch.cat([made.draft.q.rows(torch.full((GAMMA,), r), torch.arange(GAMMA), 1009) for r in range(2)])
    tokens, counts, _ = in_order(made, rows)
    assert counts.tolist() == [GAMMA, GAMMA]
    assert tokens[:, :GAMMA].tolist() == made.draft.tokens.tolist()


def in_order(made: Round, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
    arguments = (p.log(), p, made.draft.tokens, made.draft.usable, made.draft.q, made.start, made.lengths)
    return emulated.in_every_order(lambda: cuda.accept(*arguments, made.temperatures, made.noise))


def test_rows_without_a_distribution_fall_back_to_their_maximum() -> None:
    made = Round(3, 1009, torch.float32, (1.0,), "sparse")
    made.lengths[:] = 0
    made.start = start_of(made.lengths)
    made.logits = torch.randn(3, 1009)
    made.logits[0, 17] = float("inf")
    made.logits[1, 23] = float("nan")
    made.logits[1, 29] = 50.0
    made.logits[2] = float("-inf")
    tokens, counts, _ = made.run()
    assert tokens[:, 0].tolist() == [17, 29, 0]
    assert counts.tolist() == [1, 1, 1]


def test_emitted_tokens_have_the_target_distribution() -> None:
    batch, vocab = 500, 11
    p = torch.tensor([0.30, 0.0, 0.2, 0.05, 0.05, 0.1, 0.05, 0.05, 0.1, 0.05, 0.05])
    q_row = torch.tensor([0.6, 0.3, 0.1])
    ids = torch.tensor([0, 1, 4], dtype=torch.int32)
    g = torch.Generator().manual_seed(0)
    drafted = ids.long()[torch.multinomial(q_row, batch, True, generator=g)].view(batch, 1)
    q = SparseQ(ids.expand(batch, 1, 3).contiguous(), q_row.expand(batch, 1, 3).contiguous())
    lengths = torch.ones(batch, dtype=torch.int64)
    noise = Noise(5, torch.arange(batch), torch.zeros(batch, dtype=torch.int64))
    rows = p.expand(2 * batch, vocab).contiguous()
    emulated.module.set_order(0)
    tokens, _, _ = cuda.accept(
        rows.log(), None, drafted, lengths, q, start_of(lengths), lengths, torch.ones(batch), noise
    )
    counts = torch.bincount(tokens[:, 0], minlength=vocab)
    assert counts[1] == 0
    error = (counts / batch - p).abs() / (p * (1 - p) / batch).sqrt().clamp_min(1e-9)
    assert error[p > 0].max() < 4.5
