"""Which noise a request gets: a stream of its own that nobody had before, and a round that is never used twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.engine.streams import NoiseStreams

PLACES = torch.zeros(3, dtype=torch.int64)


def named(*names: str) -> list[SimpleNamespace]:
    unseeded = SimpleNamespace(sampling_seed=None)
    return [SimpleNamespace(rid=name, sampling_params=unseeded) for name in names]


@pytest.mark.known_case(11)
def test_a_request_in_a_freed_place_has_a_stream_of_its_own() -> None:
    streams = NoiseStreams(5, "cpu")
    first = streams.next_round(named("a", "b"), PLACES[:2])
    aborted = streams.next_round(named("c", "b"), PLACES[:2])  # c takes the place of a
    again = streams.next_round(named("a", "b", "c"), PLACES)  # a name that comes back is not continued
    assert first.streams.tolist() == [0, 1]
    assert aborted.streams.tolist() == [2, 1]
    assert again.streams.tolist() == [3, 1, 2]


@pytest.mark.known_case(16)
def test_no_pair_of_stream_and_round_is_used_twice() -> None:
    streams, used = NoiseStreams(5, "cpu"), set()
    for names in (("a",), ("a", "b"), ("b",), ("b", "a"), (), ("a", "b", "c"), ("c", "b", "a")):
        noise = streams.next_round(named(*names), PLACES[: len(names)])
        pairs = set(zip(noise.streams.tolist(), noise.rounds.tolist(), strict=True))
        assert len(pairs) == len(names)
        assert not pairs & used
        used |= pairs
