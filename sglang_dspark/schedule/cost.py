"""The time of a decoding round from requests, verified tokens and context: what a measured profile says (NumPy only).

    T(R, M, C) = bias + alpha(R) + theta(M) + u · C + v · M · C / R

R requests verify M tokens over C committed tokens. alpha holds what grows with the requests (draft, sequential part,
bookkeeping) and theta what grows with the verified tokens (dense layers, accept). Attention reads the context of each
request once (u) and computes with it for each verified token (v). Every term rises in R, M and the mean context C / R.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.survival import FloatArray, IntArray

if TYPE_CHECKING:
    from sglang_dspark.schedule.profile import Profile

# No round is free, whatever a table says; it is divided by.
SHORTEST_SECONDS = 1e-9


@dataclass(frozen=True)
class Curve:
    """A piecewise linear, non-decreasing function of a count.

    Attributes:
        probes: `[n >= 1]`, strictly rising, at least 0.
        seconds: `[n]`, its values there.
    """

    probes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.probes or len(self.probes) != len(self.seconds):
            raise ConfigError(f"probes, seconds: expected equal lengths, got {len(self.probes)}, {len(self.seconds)}")
        if self.probes[0] < 0 or (np.diff(self.probes) <= 0).any():
            raise ConfigError(f"probes: expected counts that rise strictly, got {list(self.probes)}")
        if not np.isfinite(self.seconds).all() or self.seconds[0] < 0 or (np.diff(self.seconds) < 0).any():
            raise ConfigError(f"seconds: expected finite values, at least 0, that never fall, got {list(self.seconds)}")

    @property
    def last_slope(self) -> float:
        """Seconds per count past the last probe; where the last piece is flat, the mean slope stands in for it."""
        if len(self.probes) < 2:
            return 0.0
        for start in (-2, 0):
            rise = self.seconds[-1] - self.seconds[start]
            if rise > 0:
                return rise / (self.probes[-1] - self.probes[start])
        return 0.0

    def at(self, counts: IntArray | FloatArray) -> FloatArray:
        """Values at `counts`: constant before the first probe, on with the last slope past the last one."""
        inside = np.interp(counts, self.probes, self.seconds)
        return inside + self.last_slope * np.maximum(np.asarray(counts, dtype=np.float64) - self.probes[-1], 0.0)


@dataclass(frozen=True)
class Surface:
    """One kind of round, drafted or not.

    Attributes:
        bias_seconds: of a round, whatever it holds.
        requests, tokens: alpha and theta.
        context_seconds: u, per committed token of all requests.
        token_context_seconds: v, per verified token and committed token of one request.
    """

    bias_seconds: float
    requests: Curve
    tokens: Curve
    context_seconds: float = 0.0
    token_context_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bias_seconds", "context_seconds", "token_context_seconds"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}: expected a finite value, at least 0, got {value}")


@dataclass(frozen=True)
class GraphSizes:
    """Sizes at which the engine captured its graphs, rising; a round is padded up to the next one."""

    requests: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    @staticmethod
    def padded(counts: IntArray, sizes: Sequence[int]) -> IntArray:
        """`counts` rounded up to a captured size; past the last one rounds are not captured and keep their size."""
        if not sizes:
            return counts
        ends = np.asarray(sizes, dtype=np.int64)
        place = np.searchsorted(ends, counts)
        return np.where(place < len(ends), ends[np.minimum(place, len(ends) - 1)], counts)


class CostModel:
    """Answers in microseconds of planning time: all that does not depend on the context is tabulated.

    Args:
        drafted: a round that drafts and verifies.
        undrafted: a round at ℓ = 0 whose draft forward was skipped; None where it was not measured.
        graphs: captured sizes, on a GPU.
    """

    def __init__(self, drafted: Surface, undrafted: Surface | None = None, graphs: GraphSizes | None = None) -> None:
        self.drafted = drafted
        self.undrafted = undrafted
        self.graphs = graphs or GraphSizes()
        self._count: FloatArray = np.zeros(0)
        self._alpha: FloatArray = np.zeros(0)
        self._theta: FloatArray = np.zeros(0)
        self._plain: FloatArray = np.zeros(0)
        self._tabulate(1024)

    @classmethod
    def from_profile(cls, profile: Profile) -> Self:
        """The model of a profile, trusted or not.

        Raises:
            ConfigError: it was never calibrated, so that there is nothing to schedule by.
        """
        if not profile.calibrated:
            raise ConfigError(f"profile: {profile.trouble}")
        return cls(profile.drafted, profile.undrafted, profile.graphs)

    def round_seconds(self, requests: int, context: int, gamma: int) -> FloatArray:
        """Seconds of a whole round with its draft, for every total of verified tokens.

        Args:
            requests: R.
            context: committed tokens of all requests.
            gamma: draft tokens a request.

        Returns:
            `[R (1 + gamma) + 1]` float64: entry M verifies M tokens. Entries below R cannot occur; they are finite.
        """
        size = requests * (1 + gamma) + 1
        self._tabulate(size)
        seconds = self._theta[:size] + (self._alpha[requests] + self.drafted.context_seconds * context)
        if self.drafted.token_context_seconds and requests:
            seconds += self._count[:size] * (self.drafted.token_context_seconds * context / requests)
        return seconds

    def undrafted_seconds(self, requests: int, context: int) -> float:
        """Seconds of the round that verifies no draft token and whose draft forward was skipped.

        Where that was not measured it is taken to cost what the drafted round with ℓ = 0 costs, which is more.
        """
        if self.undrafted is None:
            return float(self.round_seconds(requests, context, 0)[requests])
        self._tabulate(requests + 1)
        mean = context / requests if requests else 0.0
        attention = self.undrafted.context_seconds * context + self.undrafted.token_context_seconds * requests * mean
        return float(self._plain[requests] + attention)

    def _tabulate(self, size: int) -> None:
        if size <= len(self._count):
            return
        counts = np.arange(2 * size)
        requests = self.graphs.padded(counts, self.graphs.requests)
        tokens = self.graphs.padded(counts, self.graphs.tokens)
        self._count = counts.astype(np.float64)
        self._alpha = self.drafted.requests.at(requests)
        self._theta = np.maximum(self.drafted.bias_seconds + self.drafted.tokens.at(tokens), SHORTEST_SECONDS)
        if self.undrafted is not None:
            plain = self.undrafted.requests.at(requests) + self.undrafted.tokens.at(requests)
            self._plain = np.maximum(self.undrafted.bias_seconds + plain, SHORTEST_SECONDS)
