"""Seeded requests in the engine's own sampler: its noise, the right rows, no trace on the others."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler as engine_sampler

from sglang_dspark.engine import seeds
from sglang_dspark.engine.streams import NoiseStreams
from sglang_dspark.ops.noise import seeded_hash
from sglang_dspark.ops.seeded import seeded_pick

MARK = seeds._NO_SEED


def test_the_noise_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's function, with the hash that it takes from a kernel without a CPU build."""
    monkeypatch.setattr(
        engine_sampler, "murmur_hash32", lambda seed, place, column: seeded_hash(seed.to(torch.int64), place, column)
    )
    p = torch.softmax(torch.randn(200, 500, generator=torch.Generator().manual_seed(3)) * 3, dim=-1)
    seed, place = torch.arange(200) * 104729 - 77, torch.arange(200) * 3
    engine = inspect.unwrap(engine_sampler.multinomial_with_seed)(p.log(), seed, place).view(-1)
    assert torch.equal(seeded_pick(p, p, torch.ones(200), seed, place), engine)


def sampled(
    monkeypatch: pytest.MonkeyPatch, seed: list[int], top_k: list[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of the hooked sampler for one distribution, and what the engine's own draw would have been."""
    monkeypatch.setattr(seeds._Seen, "any", True)
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    monkeypatch.setattr(seeds, "get_exec", lambda: SimpleNamespace(deterministic=deterministic))
    size, own = len(seed), torch.arange(len(seed), dtype=torch.int32) + 90
    probs = torch.softmax(torch.randn(1, 100, generator=torch.Generator().manual_seed(4)), dim=-1).expand(size, 100)
    info = SimpleNamespace(
        sampling_seed=torch.tensor(seed), min_ps=torch.zeros(size), top_ps=torch.ones(size),
        top_ks=torch.tensor(top_k or [1 << 30] * size, dtype=torch.int32),
    )  # fmt: skip

    def original(sampler: Any, probs: torch.Tensor, given: Any, positions: torch.Tensor, simple: bool) -> Any:
        assert given.sampling_seed is None  # its backends assert so, and it would seed the unseeded
        return own.clone(), None

    tokens, _ = seeds.sample_from_probs(original, None, probs, info, torch.full((size,), 9), top_k is None)
    assert info.sampling_seed is not None
    return tokens, own


def test_only_seeded_rows_change(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, own = sampled(monkeypatch, [5, MARK, 5, 6, MARK])
    assert tokens[[1, 4]].tolist() == own[[1, 4]].tolist()
    assert tokens[0] == tokens[2] != tokens[3]


def test_a_filtering_neighbour_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, _ = sampled(monkeypatch, [5, 7])
    beside, _ = sampled(monkeypatch, [5, 7, 8], [1 << 30, 1 << 30, 2])
    assert torch.equal(beside[:2], alone)


def request(rid: str, seed: int | None) -> Any:
    return SimpleNamespace(rid=rid, sampling_params=SimpleNamespace(sampling_seed=seed))


def test_streams_of_seeded_requests() -> None:
    places = torch.tensor([11, 22, 33])
    streams = NoiseStreams(1, "cpu")
    assert streams.next_round([request("a", None)], places[:1]).coupled is None
    noise = streams.next_round([request("a", None), request("b", 77), request("c", MARK)], places)
    assert noise.coupled is not None
    assert noise.coupled.tolist() == [False, True, True]
    assert noise.streams.tolist() == [0, 77, MARK + 1]
    assert noise.rounds.tolist() == [2, 22, 33]


def test_gumbel_coupling_gives_every_request_a_seed_it_keeps() -> None:
    first, second = NoiseStreams(1, "cpu", "gumbel"), NoiseStreams(1, "cpu", "gumbel")
    places, requests = torch.tensor([1, 1]), [request("a", None), request("b", None)]
    noise = first.next_round(requests, places)
    assert noise.coupled is not None
    assert bool(noise.coupled.all())
    assert len(set(noise.streams.tolist())) == 2
    assert torch.equal(noise.streams, first.next_round(requests, places + 3).streams)
    assert torch.equal(noise.streams, second.next_round(requests, places).streams)
