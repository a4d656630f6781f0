"""The sequential loop, dense and sparse, in every implementation, against a float64 reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from draft_cases import assert_matches_reference, make_head, make_noise

from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, DraftFilter, draft_block
from sglang_dspark.ops.draft_q import SparseQ
from sglang_dspark.ops.noise import Noise

V, H, R, GAMMA = 137, 6, 5, 4
FORMS = pytest.mark.parametrize("support", [None, 17], ids=["dense", "sparse"])


@FORMS
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("first", [True, False])
def test_matches_the_reference(implementation, support, kind, activation, first) -> None:
    head, g = make_head(kind, V, R, H, activation, first), torch.Generator().manual_seed(5)
    base, hidden = torch.randn(4, GAMMA, V, generator=g), torch.randn(4, GAMMA, H, generator=g)
    base[0, 1, 3], base[1, 0, 4], base[2, 2, :100] = 1e4, float("-inf"), -0.0
    anchors, temperatures = torch.tensor([0, 5, 36, 136]), torch.tensor([0.0, 0.7, 1.3, 100.0])
    confidence = ConfidenceHead(torch.randn(1, H + R, generator=g), torch.randn(1, generator=g), with_markov=True)
    noise = make_noise(4)
    arguments = (base, anchors, hidden, head, confidence, temperatures, noise)
    block = draft_block(*arguments, support=support, isa=implementation)
    assert_matches_reference(block, *arguments, support)


@FORMS
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logits", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rank", [1, 31, 64, 70])
def test_mixed_dtypes(implementation, support, weights, logits, rank) -> None:
    """bf16 logits tie often: candidates and argmax take the lowest ids."""
    head, g = make_head("gated", V, rank, H, dtype=weights), torch.Generator().manual_seed(1)
    base, hidden = torch.randn(3, GAMMA, V, generator=g).to(logits), torch.randn(3, GAMMA, H, generator=g).to(logits)
    anchors, temperatures, noise = torch.tensor([1, 2, 3]), torch.tensor([0.0, 0.5, 1.0]), make_noise(3)
    arguments = (base, anchors, hidden, head, None, temperatures, noise)
    block = draft_block(*arguments, support=support, isa=implementation)
    assert_matches_reference(block, *arguments, support)


@FORMS
def test_all_implementations_draw_the_same_tokens(support) -> None:
    head, g = make_head("rnn", V, R, H), torch.Generator().manual_seed(3)
    base, hidden = torch.randn(64, GAMMA, V, generator=g) * 3, torch.randn(64, GAMMA, H, generator=g)
    anchors, temperatures = torch.arange(64), torch.full((64,), 1.0)
    from sglang_dspark.ops.draft_torch import draft_block_torch
    from sglang_dspark.ops.extension import describe

    arguments = (base, anchors, hidden, head, None, temperatures, make_noise(64))
    expected = draft_block_torch(*arguments, support)[0]
    for isa in describe().isas:
        assert torch.equal(draft_block(*arguments, support=support, isa=isa).tokens, expected)


@FORMS
@pytest.mark.known_case(16)
def test_a_request_draws_the_same_in_any_batch(implementation, support) -> None:
    """Known case 16. Tokens, q and the usable prefix of a request do not depend on its neighbours or its row."""
    head, g = make_head("vanilla", V, 64, H, dtype=torch.bfloat16), torch.Generator().manual_seed(4)
    base, hidden = torch.randn(12, GAMMA, V, generator=g) * 2, torch.randn(12, GAMMA, H, generator=g)
    anchors, temperatures = torch.arange(12), torch.linspace(0, 2, 12)
    noise = make_noise(12)
    whole = draft_block(base, anchors, hidden, head, None, temperatures, noise, support=support, isa=implementation)
    for rows in ([7], [11, 3], [5, 0, 9, 2, 7], list(range(11, -1, -1))):
        part = draft_block(
            base[rows], anchors[rows], hidden[rows], head, None, temperatures[rows],
            Noise(noise.seed, noise.streams[rows], noise.rounds[rows]), support=support, isa=implementation,
        )  # fmt: skip
        assert torch.equal(part.tokens, whole.tokens[rows])
        if implementation is not None:  # a matrix product of torch may round differently
            assert torch.equal(part.q.of_tokens(part.tokens), whole.q.of_tokens(whole.tokens)[rows])


def test_dense_and_sparse_agree_when_the_winner_is_a_candidate(implementation) -> None:
    head, g = make_head("vanilla", V, R, H), torch.Generator().manual_seed(6)
    base, hidden = torch.randn(40, GAMMA, V, generator=g) * 4, torch.zeros(40, GAMMA, H)
    arguments = (base, torch.arange(40), hidden, head, None, torch.full((40,), 0.8), make_noise(40))
    dense = draft_block(*arguments, isa=implementation)
    full = draft_block(*arguments, support=V, isa=implementation)
    assert torch.equal(dense.tokens, full.tokens)
    torch.testing.assert_close(dense.q.of_tokens(dense.tokens), full.q.of_tokens(full.tokens), rtol=1e-5, atol=1e-7)


@FORMS
def test_rounds_streams_and_positions_draw_anew(implementation, support) -> None:
    """Equal logits at all positions, equal seeds: every draw is its own."""
    head = make_head("vanilla", V, R, H)
    head = dataclasses.replace(head, w2=torch.zeros_like(head.w2))
    base, hidden, anchors = torch.zeros(2, GAMMA, V), torch.zeros(2, GAMMA, H), torch.zeros(2, dtype=torch.int64)
    drawn = [
        draft_block(
            base,
            anchors,
            hidden,
            head,
            None,
            torch.ones(2),
            make_noise(2, round_=round_),
            support=support,
            isa=implementation,
        ).tokens
        for round_ in range(3)
    ]
    flat = torch.cat(drawn).flatten().tolist()
    assert len(set(flat)) > 8  # of 24 draws, from 17 candidates in sparse form
    again = draft_block(
        base, anchors, hidden, head, None, torch.ones(2), make_noise(2), support=support, isa=implementation
    )
    assert torch.equal(again.tokens, drawn[0])


@FORMS
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_cannot_be_drawn_ends_the_usable_prefix(implementation, support, bad, temperature) -> None:
    head, g = make_head("vanilla", V, R, H), torch.Generator().manual_seed(2)
    base = torch.randn(4, GAMMA, V, generator=g)
    hidden = torch.zeros(4, GAMMA, H)
    base[1, 2, 7] = bad
    base[2, 0] = float("-inf")
    base[3, 3, :] = bad
    confidence = ConfidenceHead(torch.ones(1, H), None, with_markov=False)
    block = draft_block(
        base, torch.arange(4), hidden, head, confidence, torch.full((4,), temperature), make_noise(4), support=support,
        isa=implementation,
    )  # fmt: skip
    assert block.usable.tolist() == [GAMMA, GAMMA if bad == float("-inf") else 2, 0, 3]
    assert block.confidence[2].tolist() == [0.0] * GAMMA


@FORMS
def test_non_finite_hidden_states_end_it_where_a_head_reads_them(implementation, support) -> None:
    head, g = make_head("rnn", V, R, H), torch.Generator().manual_seed(2)
    base, hidden = torch.randn(2, GAMMA, V, generator=g), torch.randn(2, GAMMA, H, generator=g)
    hidden[1, 1, 0] = float("nan")
    block = draft_block(
        base,
        torch.zeros(2).long(),
        hidden,
        head,
        None,
        torch.ones(2),
        make_noise(2),
        support=support,
        isa=implementation,
    )
    assert block.usable.tolist() == [GAMMA, 1]


@pytest.mark.known_case(7)
@FORMS
def test_strides_an_empty_batch_and_one_position(implementation, support) -> None:
    head, g = make_head("gated", V, R, H), torch.Generator().manual_seed(2)
    wide = torch.randn(GAMMA, 3, V + 3, generator=g).transpose(0, 1)
    hidden = torch.randn(3, 1, H, generator=g).expand(3, GAMMA, H)
    arguments = (torch.tensor([0, 1, 2]), hidden, head, None, torch.tensor([1.0, 0.0, 0.5]), make_noise(3))
    block = draft_block(wide[..., :V], *arguments, support=support, isa=implementation)
    same = draft_block(wide[..., :V].contiguous(), *arguments, support=support, isa=implementation)
    assert torch.equal(block.tokens, same.tokens)
    empty = draft_block(
        torch.zeros(0, GAMMA, V), torch.zeros(0).long(), torch.zeros(0, GAMMA, H), head, None, torch.zeros(0),
        make_noise(0), support=support, isa=implementation,
    )  # fmt: skip
    assert isinstance(empty, DraftBlock)
    assert empty.tokens.shape == (0, GAMMA)
    single = draft_block(
        wide[:, :1, :V], arguments[0], hidden[:, :1], *arguments[2:], support=support, isa=implementation
    )
    assert torch.equal(single.tokens[:, 0], block.tokens[:, 0])


def test_greedy_batch_needs_no_noise_and_has_no_q(implementation) -> None:
    head = make_head("vanilla", V, R, H)
    base = torch.zeros(1, GAMMA, V)
    head = dataclasses.replace(head, w2=torch.zeros_like(head.w2))
    for support in (None, 3):
        block = draft_block(
            base, torch.tensor([3]), torch.zeros(1, GAMMA, H), head, None, None, support=support, isa=implementation
        )
        assert block.q is None
        assert block.tokens.tolist() == [[0] * GAMMA]  # ties: the lowest id


@pytest.mark.parametrize("top_k", [None, 1, 5])
@pytest.mark.parametrize("top_p", [None, 0.0, 0.6])
@pytest.mark.parametrize("masked", [False, True])
def test_filters_restrict_q_and_nothing_else(implementation, top_k, top_p, masked) -> None:
    size, support = 50, 20
    head, g = make_head("vanilla", V, R, H), torch.Generator().manual_seed(8)
    base, hidden = torch.randn(size, GAMMA, V, generator=g), torch.zeros(size, GAMMA, H)
    allowed = torch.rand(size, GAMMA, V, generator=g) < 0.5
    arguments = (base, torch.arange(size), hidden, head, None, torch.ones(size), make_noise(size))
    plain = draft_block(*arguments, support=support, isa=implementation)
    filters = DraftFilter(
        None if top_k is None else torch.full((size,), top_k),
        None if top_p is None else torch.full((size,), top_p),
        pack(allowed) if masked else None,
    )
    block = draft_block(*arguments, support=support, filters=filters, isa=implementation)
    assert isinstance(block.q, SparseQ)
    # The first position has the same logits in both: its q is the plain one, cut and renormalised.
    q = plain.q.probs[:, 0].clone()
    assert torch.equal(block.q.ids[:, 0], plain.q.ids[:, 0])
    if masked:
        q *= allowed[:, 0].gather(1, plain.q.ids[:, 0].long())
        q /= q.sum(dim=1, keepdim=True)
    ordered, order = q.sort(dim=1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        keep &= torch.arange(support) < top_k
    if top_p is not None:
        keep &= ordered.cumsum(1) - ordered <= top_p
    keep[:, 0] = True
    expected = torch.zeros_like(q).scatter_(1, order, torch.where(keep, ordered, 0.0))
    expected /= expected.sum(dim=1, keepdim=True)
    torch.testing.assert_close(block.q.probs[:, 0], expected, rtol=1e-4, atol=1e-6)
    assert bool((block.q.of_tokens(block.tokens)[block.usable == GAMMA] > 0).all())


def test_a_mask_without_candidates_ends_the_usable_prefix(implementation) -> None:
    head = make_head("vanilla", V, R, H)
    base = torch.randn(2, GAMMA, V, generator=torch.Generator().manual_seed(1))
    allowed = torch.ones(2, GAMMA, V, dtype=torch.bool)
    allowed[1, 2] = False
    for temperature in (0.0, 1.0):
        block = draft_block(
            base, torch.zeros(2).long(), torch.zeros(2, GAMMA, H), head, None, torch.full((2,), temperature),
            make_noise(2), support=9, filters=DraftFilter(mask=pack(allowed)), isa=implementation,
        )  # fmt: skip
        assert block.usable.tolist() == [GAMMA, 2]


def pack(allowed: torch.Tensor) -> torch.Tensor:
    """bool [..., V] -> int32 [..., ceil(V / 32)], the layout of grammar bitmasks."""
    padded = torch.nn.functional.pad(allowed.long(), (0, -allowed.shape[-1] % 32))
    words = (padded.unflatten(-1, (-1, 32)) << torch.arange(32)).sum(dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("base_logits", {"base_logits": torch.zeros(2, V)}),
        ("base_logits", {"base_logits": torch.zeros(2, 0, V), "hidden": torch.zeros(2, 0, H)}),
        ("base_logits", {"base_logits": torch.zeros(2, GAMMA, V, dtype=torch.int64)}),
        ("anchors", {"anchors": torch.zeros(3).long()}),
        ("anchors", {"anchors": torch.zeros(2)}),
        ("anchors", {"anchors": torch.tensor([0, V])}),
        ("anchors", {"anchors": torch.tensor([-1, 0])}),
        ("temperatures", {"temperatures": torch.zeros(1)}),
        ("temperatures", {"temperatures": torch.tensor([1.0, -1.0])}),
        ("temperatures", {"temperatures": torch.tensor([1.0, float("nan")])}),
        ("temperatures", {"temperatures": torch.tensor([1.0, 1e-40])}),
        ("noise", {"noise": None}),
        ("noise.streams", {"noise": Noise(0, torch.zeros(1).long(), torch.zeros(2).long())}),
        ("noise.rounds", {"noise": Noise(0, torch.zeros(2).long(), torch.zeros(2))}),
        ("head.w2", {"base_logits": torch.zeros(2, GAMMA, V - 1)}),
        ("head.w1", {"base_logits": torch.zeros(2, GAMMA, V + 1)}),
        ("head.joint", {"head": dataclasses.replace(make_head("vanilla", V, R, H), kind="gated")}),
        ("head.kind", {"head": dataclasses.replace(make_head("vanilla", V, R, H), kind="lstm")}),
        ("hidden", {"hidden": torch.zeros(2, GAMMA + 1, H)}),
        ("confidence_head", {"confidence_head": ConfidenceHead(torch.zeros(1, H), None, True)}),
        ("support", {"support": 0}),
        ("filters", {"support": None, "filters": DraftFilter(top_k=torch.ones(2).long())}),
        ("top_k", {"filters": DraftFilter(top_k=torch.zeros(2).long())}),
        ("top_p", {"filters": DraftFilter(top_p=torch.full((2,), 1.5))}),
        ("mask", {"filters": DraftFilter(mask=torch.zeros(2, GAMMA, V, dtype=torch.int32))}),
    ],
)
def test_bad_arguments_are_named(implementation, name: str, change: dict) -> None:
    arguments = {
        "base_logits": torch.zeros(2, GAMMA, V),
        "anchors": torch.zeros(2).long(),
        "hidden": torch.zeros(2, GAMMA, H),
        "head": make_head("vanilla", V, R, H),
        "confidence_head": None,
        "temperatures": torch.ones(2),
        "noise": make_noise(2),
        "support": 5,
        "isa": implementation,
    }
    with pytest.raises(ValueError, match=name):
        draft_block(**(arguments | change))
