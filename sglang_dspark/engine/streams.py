"""Which noise each request uses: a stream of its own, and a round that is never used twice (docs/noise.md)."""

from __future__ import annotations

from typing import Any

import torch

from sglang_dspark.engine.seeds import coupled_streams
from sglang_dspark.ops.host import to_device
from sglang_dspark.ops.noise import Noise


class NoiseStreams:
    """Numbers requests in the order they are first seen, the same on every rank of a group.

    A request that leaves the batch and comes back, after a retraction for instance, is numbered anew: what its old
    noise decided may have been seen by confidences that are still in use.
    """

    def __init__(self, seed: int, device: torch.device | str, coupling: str = "rejection") -> None:
        self._seed = seed
        self._coupling = coupling
        self._device = device
        self._next_stream = 0
        self._round = 0
        self._streams: dict[str, int] = {}

    def next_round(self, reqs: list[Any], prefix_lens: torch.Tensor) -> Noise:
        """The noise of one round of this batch; `prefix_lens`: `[B]`, the anchors' places in their sequences."""
        known, self._streams = self._streams, {}
        for req in reqs:
            stream = known.get(req.rid)
            if stream is None:
                stream = self._next_stream
                self._next_stream += 1
            self._streams[req.rid] = stream
        self._round += 1
        numbers = [self._streams[req.rid] for req in reqs]
        seeds = coupled_streams(reqs, numbers, self._seed, self._coupling)
        if seeds is None:
            streams = to_device(numbers, self._device)
            return Noise(self._seed, streams, torch.full_like(streams, self._round))
        pairs = zip(seeds, numbers, strict=True)
        streams = to_device([n if s is None else s for s, n in pairs], self._device)
        coupled = to_device([int(s is not None) for s in seeds], self._device).bool()
        return Noise(self._seed, streams, torch.where(coupled, prefix_lens.long(), self._round), coupled)
