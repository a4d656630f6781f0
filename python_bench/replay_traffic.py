"""What requests would accept: chains of full blocks, recorded or drawn by a documented generator."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.rounds import RoundLog

if TYPE_CHECKING:
    from sglang_dspark.schedule.calibration import Calibration

_FEWEST_ROUNDS = 8


@dataclass(frozen=True)
class Chains:
    """Requests, each a run of decoding rounds in which all γ draft tokens were tested.

    A simulated round that verifies ℓ of them emits 1 + min(ℓ, accepted), which is what the coupled cut does.

    Attributes:
        confidence: `[N, T, γ]` float32.
        accepted: `[N, T]` int64, of γ.
        rounds: `[N]` int64, how many of the T are there; the rest repeats.
        domain: `[N]`.
        source: what it is, for the reader.
    """

    confidence: npt.NDArray[np.float32]
    accepted: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    domain: npt.NDArray[np.str_]
    source: str

    @property
    def gamma(self) -> int:
        return self.confidence.shape[2]

    def of(self, domain: str) -> Chains:
        """The requests of one domain."""
        mine = self.domain == domain
        return Chains(self.confidence[mine], self.accepted[mine], self.rounds[mine], self.domain[mine], self.source)

    def accept_length(self) -> float:
        """Mean tokens a round at full γ."""
        known = np.arange(self.accepted.shape[1]) < self.rounds[:, None]
        return 1.0 + float(self.accepted[known].mean())


@dataclass(frozen=True)
class Domain:
    """A kind of traffic for `generate`, in logits: the mean, and how requests, rounds and positions vary about it."""

    mean: float
    request_spread: float = 0.7
    round_spread: float = 0.8
    position_drop: float = 0.1


# Accept lengths 2.0, 2.2 and 1.5, about as `results/accept.json` has them for the demo pair at temperature 0.
DEMO = {"math": Domain(-0.25), "code": Domain(0.0), "chat": Domain(-0.95)}
# A good draft of a large target: 4.3 tokens a round in math, 3.9 in code, 2.4 in chat.
LARGE = {"math": Domain(1.75), "code": Domain(1.45), "chat": Domain(0.35)}


def generate(domains: dict[str, Domain], gamma: int, each: int = 120, rounds: int = 200, seed: int = 0) -> Chains:
    """Requests that differ, rounds that follow one another, confidences that know much but not all.

    The chance that position k is accepted, given those before it, is the logistic of: the domain's mean + the request's
    offset + a round's offset (autoregressive, 0.7) - a drop for each position + noise of the position (0.8). The
    confidence sees all but the last of these, so that it is calibrated on average and sharp only in part.
    """
    rng = np.random.default_rng(seed)
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    weights = weights / weights.sum()
    confidence, accepted, names = [], [], []
    for name, kind in domains.items():
        request = rng.normal(0, kind.request_spread, (each, 1))
        state = np.empty((each, rounds))
        state[:, 0] = rng.normal(0, kind.round_spread, each)
        for t in range(1, rounds):
            state[:, t] = 0.7 * state[:, t - 1] + rng.normal(0, kind.round_spread * np.sqrt(1 - 0.49), each)
        seen = (kind.mean + request + state)[..., None] - kind.position_drop * np.arange(gamma)
        chance = _logistic(seen + rng.normal(0, 0.8, seen.shape))
        passed = rng.random(seen.shape) < chance
        accepted.append(np.logical_and.accumulate(passed, axis=2).sum(axis=2))
        confidence.append(sum(w * _logistic(seen + 0.8 * z) for z, w in zip(nodes, weights, strict=True)))
        names += [name] * each
    total = each * len(domains)
    return Chains(
        np.concatenate(confidence).astype(np.float32),
        np.concatenate(accepted).astype(np.int64),
        np.full(total, rounds),
        np.array(names),
        f"generated, {', '.join(domains)}, gamma {gamma}, seed {seed}",
    )


def recorded(log: RoundLog, calibration: Calibration | None = None) -> Chains:
    """Requests of a record in their own order: rounds in which they verified all γ, by a choice made before the draft.

    The domain is read from request ids of the form `cal-<domain>-<i>`, else it is `all`.

    Raises:
        DSparkError: no request has enough such rounds.
    """
    rows: dict[str, list[tuple[npt.NDArray[np.float32], int]]] = defaultdict(list)
    for one in log:
        if one.rows is None or one.rows.confidence is None:
            continue
        confidence = one.rows.confidence
        if calibration is not None:
            confidence = calibration.apply(confidence, one.rows.temperature.astype(np.float32), one.rows.coupled)
        for i in np.flatnonzero(one.rows.explored & (one.rows.length == log.gamma)).tolist():
            rows[one.rows.rid[i]].append((confidence[i], int(one.rows.accepted[i])))
    kept = {rid: found for rid, found in rows.items() if len(found) >= _FEWEST_ROUNDS}
    if not kept:
        raise DSparkError(
            f"no request of the record has {_FEWEST_ROUNDS} rounds at full length; record a calibration run"
        )
    longest = max(map(len, kept.values()))
    confidence = np.stack([np.resize(np.array([c for c, _ in f]), (longest, log.gamma)) for f in kept.values()])
    accepted = np.stack([np.resize(np.array([a for _, a in f], dtype=np.int64), longest) for f in kept.values()])
    domains = [rid.split("-")[1] if rid.startswith("cal-") and rid.count("-") >= 2 else "all" for rid in kept]
    counts = np.array([len(f) for f in kept.values()])
    source = f"recorded, {len(kept)} requests, {counts.sum()} rounds"
    return Chains(confidence.astype(np.float32), accepted, counts, np.array(domains), source)


def _logistic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))
