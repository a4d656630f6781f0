"""The accept on adversarial rows, against a float64 reference."""

from __future__ import annotations

import numpy as np
import torch
from draft_cases import make_head
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.draft_block import draft_block
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.reference_accept import reference_accept

PLANTED = [float("-inf"), -0.0, 0.0, 40.0, -1e30, 1e4]


@st.composite
def rounds(draw: st.DrawFn):
    batch, gamma = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    vocab = draw(st.sampled_from([2, 3, 64, 65, 517, 2500]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = draw(st.lists(st.integers(0, gamma), min_size=batch, max_size=batch))
    rows = RaggedRows.of(lengths, "cpu")
    # Close to the draft's own logits, so that positions are accepted and rejected.
    base = torch.randn(batch, gamma, vocab, generator=g) * draw(st.sampled_from([0.3, 2.0]))
    target = torch.randn(rows.total, vocab, generator=g) * draw(st.sampled_from([0.0, 0.5]))
    near = base[rows.request, rows.offset.clamp(max=gamma - 1)] if batch else target
    target = target + near
    for _ in range(draw(st.integers(0, 3)) if rows.total else 0):
        row = draw(st.integers(0, rows.total - 1))
        start, stop = sorted(draw(st.tuples(st.integers(0, vocab - 1), st.integers(0, vocab - 1))))
        target[row, start:stop] = draw(st.sampled_from(PLANTED))
    target = target.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])))
    if draw(st.booleans()):
        target = torch.nn.functional.pad(target, (0, 3))[:, :vocab]
    temperatures = torch.tensor(
        draw(st.lists(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 100.0]), min_size=batch, max_size=batch))
    )
    noise = Noise(
        draw(st.integers(0, 2**64 - 1)), torch.arange(batch), torch.full((batch,), draw(st.integers(0, 2**32 - 1)))
    )
    kind = draw(st.sampled_from(["vanilla", "rnn"]))
    head = make_head(kind, vocab, 3, 2, first=draw(st.booleans()))
    hidden = torch.randn(batch, gamma, 2, generator=g)
    broken = draw(st.booleans())
    if broken and batch:
        base[0, gamma - 1, 0] = float("nan")
    return base, hidden, head, target, rows, temperatures, noise, draw(st.sampled_from([None, 1, 4, 64]))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(round_=rounds())
def test_any_round_ends_as_the_reference_says(implementation, round_) -> None:
    base, hidden, head, target, rows, temperatures, noise, support = round_
    batch, gamma, vocab = base.shape
    anchors = torch.zeros(batch, dtype=torch.int64)
    drawn = (base, anchors, hidden, head, None, temperatures, noise)
    block = draft_block(*drawn, support=support, isa=implementation)
    accepted = accept(target, block, rows, temperatures, noise, isa=implementation)
    # The reference reads q in full; a dense q is that of the sparse form with every candidate.
    q = block.q if isinstance(block.q, SparseQ) else draft_block(*drawn, support=vocab, isa=implementation).q
    for r in range(batch):
        count = int(accepted.counts[r])
        tokens = accepted.tokens[r, :count].tolist()
        assert 1 <= count <= int(rows.lengths[r]) + 1
        assert int(accepted.last[r]) == tokens[-1]
        dense = q.rows(torch.full((gamma,), r), torch.arange(gamma), vocab)
        start = int(rows.start[r])
        expected, margin = reference_accept(
            target[start : start + int(rows.lengths[r]) + 1].double().numpy(),
            block.tokens[r].tolist(),
            dense.double().numpy(),
            int(block.usable[r]),
            float(temperatures[r]),
            (noise.seed, int(noise.streams[r]), int(noise.rounds[r])),
        )
        rounding = 1e-5 if temperatures[r] == 0 else 1e-5 + 1e-5 / float(temperatures[r])
        assert tokens == expected or margin < rounding


def test_broken_target_rows_do_not_break_the_accept(implementation) -> None:
    """NaN counts as -inf, +inf decides the row, and a row with nothing in it emits some token of the vocabulary."""
    vocab = 70
    head = make_head("vanilla", vocab, 3, 2)
    base, noise = torch.randn(4, 2, vocab, generator=torch.Generator().manual_seed(0)), None
    noise = Noise(1, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    temperatures = torch.tensor([1.0, 1.0, 1.0, 0.0])
    for support in (None, 8):
        block = draft_block(
            base, torch.zeros(4).long(), torch.zeros(4, 2, 2), head, None, temperatures, noise, support=support,
            isa=implementation,
        )  # fmt: skip
        rows = RaggedRows.of([2, 2, 2, 2], "cpu")
        target = torch.zeros(12, vocab)
        target[0:3] = float("nan")
        target[3:6, 66] = float("inf")
        target[6:9] = float("-inf")
        target[9:12, 5] = float("nan")
        target[9:12, 69] = 1.0
        accepted = accept(target, block, rows, temperatures, noise, isa=implementation)
        assert bool(((accepted.last >= 0) & (accepted.last < vocab)).all())
        assert int(accepted.last[1]) == 66
        assert int(accepted.last[3]) == 69
        zeros = torch.zeros(12, vocab)
        accepted = accept(target, block, rows, temperatures, noise, zeros, isa=implementation)
        assert bool(((accepted.last >= 0) & (accepted.last < vocab)).all())
        accepted = accept(target, block, rows, temperatures, noise, zeros * np.nan, isa=implementation)
        assert bool(((accepted.last >= 0) & (accepted.last < vocab)).all())
