"""The sequential loop on adversarial inputs: outliers, infinities, NaN, -0, ties, odd sizes, any temperature."""

from __future__ import annotations

import torch
from draft_cases import assert_matches_reference, make_head
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_dspark.ops.draft_block import ConfidenceHead, draft_block
from sglang_dspark.ops.noise import Noise

PLANTED = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e30, -1e30, 3e38, 65504.0, 1e4, 5.0]
LAYOUTS = ["plain", "wide rows", "positions first", "one row for all"]


@st.composite
def problems(draw: st.DrawFn):
    batch, gamma = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    vocab, rank, width = (
        draw(st.sampled_from([1, 2, 63, 64, 65, 130, 517])),
        draw(st.integers(1, 40)),
        draw(st.integers(1, 9)),
    )
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    base = torch.randn(batch, gamma, vocab, generator=g) * draw(st.sampled_from([0.0, 1.0, 8.0]))
    if draw(st.booleans()):
        base = base.round()  # many ties
    if batch:
        for _ in range(draw(st.integers(0, 4))):
            row, k = draw(st.integers(0, batch - 1)), draw(st.integers(0, gamma - 1))
            start, stop = sorted(draw(st.tuples(st.integers(0, vocab), st.integers(0, vocab))))
            base[row, k, start:stop] = draw(st.sampled_from(PLANTED))
    layout = draw(st.sampled_from(LAYOUTS))
    if layout == "wide rows":
        base = torch.nn.functional.pad(base, (0, 5), value=float("nan")).to(dtype)[..., :vocab]
    elif layout == "positions first":
        base = base.transpose(0, 1).contiguous().to(dtype).transpose(0, 1)
    elif layout == "one row for all" and batch:
        base = base[:1].to(dtype).expand(batch, gamma, vocab)
    kind = draw(st.sampled_from(["vanilla", "gated", "rnn"]))
    weights = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    head = make_head(
        kind, vocab, rank, width, draw(st.sampled_from(["none", "silu"])), draw(st.booleans()),
        draw(st.integers(0, 99)), weights,
    )  # fmt: skip
    confidence = ConfidenceHead(torch.randn(1, width + rank, generator=g).to(weights), None, True)
    temperatures = torch.tensor(
        draw(st.lists(st.sampled_from([0.0, 1e-3, 0.1, 0.7, 1.0, 3.0, 100.0]), min_size=batch, max_size=batch))
    )
    noise = Noise(
        draw(st.integers(0, 2**64 - 1)),
        torch.tensor(
            draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=batch, max_size=batch)), dtype=torch.int64
        ),
        torch.tensor(draw(st.lists(st.integers(0, 2**32 - 1), min_size=batch, max_size=batch)), dtype=torch.int64),
    )
    hidden = torch.randn(batch, gamma, width, generator=g).to(draw(st.sampled_from([torch.float32, torch.bfloat16])))
    anchors = torch.randint(0, vocab, (batch,), generator=g)
    support = draw(st.sampled_from([None, 1, 2, 7, 64, 600]))
    return (base.to(dtype), anchors, hidden, head, confidence, temperatures, noise), support


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(problem=problems())
def test_any_input_is_drawn_as_the_reference_says(implementation, problem) -> None:
    arguments, support = problem
    block = draft_block(*arguments, support=support, isa=implementation)
    assert_matches_reference(block, *arguments, support)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab=st.integers(1, 20000),
    support=st.integers(1, 600),
    seed=st.integers(0, 2**31),
    levels=st.sampled_from([0, 1, 3, 50]),
)
def test_selection_is_exact(isa, vocab: int, support: int, seed: int, levels: int) -> None:
    """The C largest, lowest ids on ties, whatever the size and however many entries are equal."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(1, 2, vocab, generator=g)
    if levels:
        base = (base * levels).round() / levels
    head = make_head("vanilla", vocab, 1, 1)
    block = draft_block(
        base, torch.zeros(1).long(), torch.zeros(1, 2, 1), head, None, torch.ones(1),
        Noise(0, torch.zeros(1).long(), torch.zeros(1).long()), support=support, isa=isa,
    )  # fmt: skip
    expected = base.sort(dim=-1, descending=True, stable=True).indices[..., :support].sort(dim=-1).values
    assert torch.equal(block.q.ids.long(), expected)
