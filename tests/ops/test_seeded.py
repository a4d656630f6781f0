"""Coupled draws: the engine's own noise, the same pick everywhere, and a text that no draft can change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from draft_cases import make_head, make_noise
from scipy.stats import chisquare

from sglang_dspark.ops.accept import accept
from sglang_dspark.ops.accept_torch import accept_torch
from sglang_dspark.ops.draft_block import draft_block
from sglang_dspark.ops.draft_torch import draft_block_torch
from sglang_dspark.ops.extension import extension
from sglang_dspark.ops.noise import Noise, seeded_hash
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.reference_noise import murmur_hash3, seeded_keys
from sglang_dspark.ops.reference_noise import seeded_hash as reference_hash
from sglang_dspark.ops.seeded import seeded_pick, seeded_pick_torch

SEEDS = torch.tensor([0, 1, -1, 42, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0])
ISAS = pytest.mark.parametrize("isa", ["avx512", "avx2", "scalar"])


def need(isa: str) -> None:
    native = extension()
    if native is None or isa not in native.available_isas():
        pytest.skip(f"{isa} is not available here")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur_known_answers(data: bytes, expected: int) -> None:
    """The answers published with the function."""
    assert murmur_hash3(data) == expected


def test_hash_has_the_same_bits() -> None:
    places = torch.tensor([0, 1, 5, 2**31, 2**32 - 1, 77, 12345])
    tokens = torch.tensor([0, 1, 63, 64, 49151, 151935, 2**23 - 1])
    expected = [
        [reference_hash(s, p, t) for t in tokens.tolist()] for s, p in zip(SEEDS.tolist(), places.tolist(), strict=True)
    ]
    assert seeded_hash(SEEDS, places, tokens).tolist() == expected


@ISAS
@pytest.mark.parametrize("vocab", [1, 3, 64, 65, 1000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0, 200.0])
def test_pick_is_the_largest_key(isa: str, vocab: int, spread: float) -> None:
    need(isa)
    logits = torch.randn(len(SEEDS), vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    logits[1, vocab // 2 :] = float("-inf")
    logits[1, 0] = 0.0
    temperatures = torch.tensor([1.0, 0.3, 1.7, 100.0, 1e-3, 0.7, 0.0])
    places = torch.arange(len(SEEDS)) * 1000
    picked = seeded_pick(logits, None, temperatures, SEEDS, places, isa=isa)
    p = torch.softmax(logits / temperatures.clamp_min(1e-9).unsqueeze(1), dim=-1)
    given = seeded_pick(logits, p, temperatures, SEEDS, places, isa=isa)
    for r, token in enumerate(picked.tolist()):
        if temperatures[r] == 0:
            assert token == given[r] == int(logits[r].argmax())
            continue
        scaled = logits[r].double().numpy() / float(temperatures[r])
        exact = np.exp(scaled - scaled.max())
        keys = seeded_keys(exact / exact.sum(), int(SEEDS[r]), int(places[r]))
        near = 1e-5 * (1.0 + np.abs(scaled[np.isfinite(scaled)]).max())
        assert keys[token] >= keys.max() - near
        exactly = seeded_keys(p[r].double().numpy(), int(SEEDS[r]), int(places[r]))
        assert int(given[r]) == int(exactly.argmax())
    assert torch.equal(given, seeded_pick_torch(logits, p, temperatures, SEEDS, places))


@ISAS
def test_no_token_that_can_win_is_passed_over(isa: str) -> None:
    """The bound that skips logarithms: long flat rows, where the winner comes anywhere, against the keys of all."""
    need(isa)
    rows, vocab = 64, 4099
    g = torch.Generator().manual_seed(1)
    p = torch.softmax(torch.randn(rows, vocab, generator=g) * torch.linspace(0, 8, rows).unsqueeze(1), dim=-1)
    seeds, places, ones = torch.arange(rows) * 7919, torch.arange(rows), torch.ones(rows)
    expected = seeded_pick_torch(p, p, ones, seeds, places)
    assert torch.equal(seeded_pick(p, p, ones, seeds, places, isa=isa), expected)
    assert len(set(expected.tolist())) > 32


def test_law_over_seeds() -> None:
    p = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
    seeds = torch.arange(40_000)
    for place in (0, 1):
        picked = seeded_pick(
            p.expand(len(seeds), 6), p.expand(len(seeds), 6), torch.ones(len(seeds)), seeds,
            torch.full_like(seeds, place),
        )  # fmt: skip
        counts = np.bincount(picked.numpy(), minlength=6)
        assert counts[5] == 0
        assert chisquare(counts[:5], p[:5].double().numpy() / p[:5].double().sum().item() * len(seeds)).pvalue > 1e-3


def coupled_noise(batch: int, coupled: list[bool]) -> Noise:
    return dataclasses.replace(make_noise(batch, round_=37), coupled=torch.tensor(coupled))


@ISAS
@pytest.mark.parametrize("support", [None, 8])
@pytest.mark.parametrize("kind", ["vanilla", "rnn"])
def test_draft_and_accept_agree_with_torch(isa: str, support: int | None, kind: str) -> None:
    need(isa)
    batch, gamma, vocab, hidden = 4, 3, 130, 5
    g = torch.Generator().manual_seed(5)
    base, states = torch.randn(batch, gamma, vocab, generator=g), torch.randn(batch, gamma, hidden, generator=g)
    head = make_head(kind, vocab, 4, hidden)
    anchors, temperatures = torch.tensor([1, 2, 3, 129]), torch.tensor([1.0, 0.5, 0.0, 1.3])
    noise = coupled_noise(batch, [True, False, True, True])
    block = draft_block(base, anchors, states, head, None, temperatures, noise, support=support, isa=isa)
    tokens, q, _, usable = draft_block_torch(base, anchors, states, head, None, temperatures, noise, support)
    assert torch.equal(block.tokens, tokens)
    assert not torch.equal(tokens, draft_block_torch(
        base, anchors, states, head, None, temperatures, dataclasses.replace(noise, coupled=None), support
    )[0])  # fmt: skip
    rows = RaggedRows.of([3, 2, 0, 1], "cpu")
    logits = torch.randn(rows.total, vocab, generator=g)
    for explicit in (None, torch.softmax(logits / 0.8, dim=-1)):
        found = accept(logits, block, rows, temperatures, noise, explicit, isa=isa)
        expected = accept_torch(logits, explicit, tokens, q, usable, rows, temperatures, noise)
        # q of the two differs in its last bits, and only uncoupled requests look at it.
        for a, b in zip((found.tokens, found.counts, found.last), expected, strict=True):
            assert torch.equal(a[[0, 2, 3]], b[[0, 2, 3]])


@pytest.mark.parametrize("support", [None, 4])
def test_text_does_not_depend_on_the_draft_or_the_lengths(support: int | None) -> None:
    """Whole texts of a small world under three drafts, random lengths and none: the target's own picks."""
    vocab, gamma, requests, length = 12, 3, 16, 20
    g = torch.Generator().manual_seed(8)
    target = torch.randn(vocab, vocab, generator=g) * 1.5
    seeds, temperatures = torch.arange(requests) * 31 - 9, torch.full((requests,), 0.9)

    def text(draft_seed: int, lengths: list[int]) -> list[list[int]]:
        g = torch.Generator().manual_seed(draft_seed)
        head = make_head("vanilla", vocab, 4, 1, seed=draft_seed)
        base = target.mean(0) + torch.randn(gamma, vocab, generator=g) * 0.1
        texts, rng, accepted_drafts = [[0] for _ in range(requests)], np.random.default_rng(draft_seed), 0
        while min(len(t) for t in texts) < length:
            anchors = torch.tensor([t[-1] for t in texts])
            places = torch.tensor([len(t) - 1 for t in texts])
            noise = Noise(draft_seed, seeds, places, torch.ones(requests, dtype=torch.bool))
            block = draft_block(
                base.expand(requests, gamma, vocab), anchors, torch.zeros(requests, gamma, 1), head, None,
                temperatures, noise, support=support,
            )  # fmt: skip
            rows = RaggedRows.of(rng.choice(lengths, size=requests).tolist(), "cpu")
            verify = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
            done = accept(target[verify[rows.request, rows.offset]], block, rows, temperatures, noise)
            for r, t in enumerate(texts):
                t.extend(done.tokens[r, : int(done.counts[r])].tolist())
                accepted_drafts += int(done.counts[r]) - 1
        assert accepted_drafts > 0 or lengths == [0]
        return [t[:length] for t in texts]

    plain = text(1, [0])
    assert plain == text(1, [3]) == text(2, [0, 1, 2, 3]) == text(3, [1, 3])
    for r, t in enumerate(plain[:3]):
        for place in range(length - 1):
            p = torch.softmax(target[t[place]] / 0.9, dim=-1).double().numpy()
            keys = np.sort(seeded_keys(p, int(seeds[r]), place))
            assert seeded_keys(p, int(seeds[r]), place)[t[place + 1]] >= keys[-1] - 1e-5


def test_arguments_are_checked() -> None:
    logits, one = torch.zeros(2, 5), torch.ones(2)
    places = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="seeds"):
        seeded_pick(logits, None, one, places.int(), places)
    with pytest.raises(ValueError, match="p: expected"):
        seeded_pick(logits, logits.double(), one, places, places)
    with pytest.raises(ValueError, match="target_logits"):
        seeded_pick(logits[0], None, one, places, places)
    noise = dataclasses.replace(make_noise(2), coupled=torch.zeros(3, dtype=torch.bool))
    head, hidden = make_head("vanilla", 5, 2, 1), torch.zeros(2, 1, 1)
    with pytest.raises(ValueError, match=r"noise\.coupled"):
        draft_block(torch.zeros(2, 1, 5), places, hidden, head, None, one, noise)
