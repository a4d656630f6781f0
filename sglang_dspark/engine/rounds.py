"""One decoding round as it was planned, as it ran, and what came out of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_dspark.schedule.adaptive import Decision
from sglang_dspark.schedule.survival import IntArray


@dataclass
class Round:
    """Filled in as the round goes along.

    Attributes:
        requests: the engine's requests, in batch order.
        context: committed KV tokens of all requests before the round.
        planned: `[R]` lengths that were set before the draft; None where the policy decides.
        mode: what decided the lengths: `adaptive`, `none`, `fixed3`, `sweep`, …
        drafts: whether the draft forward runs. Decided before anything is drawn.
        explored: `[R]` bool, requests that verify everything by a choice made before the draft.
        most: draft tokens of a request that fuses allowed; None: no limit.
        decision: the adaptive policy's, made before the draft.
        at: when it started, seconds since the epoch.
        requested: total tokens a sweep asked for; None where a request's own end was in the way.
        confidence: `[R, γ]` float32 as the head gave them; None without a draft or a head.
        calibrated: `[R, γ]` float32, after calibration; what the policy reads.
        lengths: `[R]` verify lengths.
        limits: `[R]` most that each request could verify.
        seconds: from this round's start to the next one's; None when something else than decoding came between.
    """

    requests: list[Any]
    context: int
    mode: str
    drafts: bool
    temperatures: npt.NDArray[np.float32]
    coupled: npt.NDArray[np.bool_]
    explored: npt.NDArray[np.bool_]
    most: int | None = None
    decision: Decision | None = None
    requested: int | None = None
    planned: IntArray | None = None
    confidence: npt.NDArray[np.float32] | None = None
    calibrated: npt.NDArray[np.float32] | None = None
    lengths: IntArray | None = None
    limits: IntArray | None = None
    seconds: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.perf_counter)
    _marked: float = field(init=False)
    _counts: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self._marked = self.started

    def mark(self, part: str) -> None:
        """`part` ended now. Says what the host spent, which on a GPU is not what the device did."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._marked
        self._marked = now

    def came_out(self, counts: torch.Tensor) -> None:
        """`counts`: `[R]` tokens emitted per request, on the device; read when the round is looked at."""
        self._counts = counts

    @property
    def tokens(self) -> int:
        """Tokens the target verified, Σ(1 + ℓ_r)."""
        assert self.lengths is not None
        return len(self.requests) + int(self.lengths.sum())

    @property
    def ran(self) -> bool:
        """False for a round that was planned and then broke off."""
        return self._counts is not None

    def same_requests(self, reqs: Sequence[Any]) -> bool:
        return len(reqs) == len(self.requests) and all(a is b for a, b in zip(reqs, self.requests, strict=True))

    def end(self) -> None:
        """The next round starts now."""
        self.seconds = time.perf_counter() - self.started

    def accepted(self) -> IntArray:
        """`[R]` draft tokens accepted. On a GPU this waits for the round."""
        assert self._counts is not None
        return self._counts.cpu().numpy().astype(np.int64) - 1
