"""Simulated continuous batching of replayed requests under every policy. Simulated seconds only: nothing is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from replay_traffic import Chains

from sglang_dspark.ops.schedule import best_budget, causal_scan, lagged_topk
from sglang_dspark.schedule import policies
from sglang_dspark.schedule.adaptive import Adaptive, Decision
from sglang_dspark.schedule.cost import CostModel
from sglang_dspark.schedule.guard import Guard
from sglang_dspark.schedule.lookahead import causal_scan_ahead

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass
class Batch:
    """The running requests before a round. `confidence` may be read after `draft` said that there is a draft."""

    ids: list[int]
    context: int
    limits: IntArray
    confidence: FloatArray


class Arm(Protocol):
    """A policy: whether the draft runs, the lengths, and what it learns."""

    def draft(self, batch: Batch) -> bool:
        """Decide before the draft; False skips its forward."""
        ...

    def lengths(self, batch: Batch) -> IntArray:
        """`[R]` verify lengths of a drafted round."""
        ...

    def after(self, batch: Batch, drafted: bool, lengths: IntArray, accepted: IntArray, seconds: float) -> None:
        """The round is over."""
        ...


class Fixed:
    """The same length for every request; 0 drafts nothing."""

    def __init__(self, length: int) -> None:
        self._length = length

    def draft(self, batch: Batch) -> bool:
        return self._length > 0

    def lengths(self, batch: Batch) -> IntArray:
        return policies.fixed(self._length, batch.limits)

    def after(self, batch: Batch, drafted: bool, lengths: IntArray, accepted: IntArray, seconds: float) -> None:
        pass


class Threshold(Fixed):
    """Up to the first position whose survival is below `minimum`."""

    def __init__(self, minimum: float) -> None:
        super().__init__(1)
        self._minimum = minimum

    def lengths(self, batch: Batch) -> IntArray:
        return policies.threshold(batch.confidence, self._minimum, batch.limits)


class Causal(Fixed):
    """The causal scan in every round, without a guard."""

    def __init__(self, cost: CostModel, gamma: int) -> None:
        super().__init__(1)
        self._cost, self._gamma = cost, gamma

    def lengths(self, batch: Batch) -> IntArray:
        seconds = self._cost.round_seconds(len(batch.ids), batch.context, self._gamma)
        return causal_scan(batch.confidence, seconds, batch.limits)


class Lagged(Causal):
    """A budget by the confidences of two rounds ago, spent on this round's; without a guard."""

    def __init__(self, cost: CostModel, gamma: int) -> None:
        super().__init__(cost, gamma)
        self._old: list[FloatArray] = []

    def lengths(self, batch: Batch) -> IntArray:
        seconds = self._cost.round_seconds(len(batch.ids), batch.context, self._gamma)
        if not self._old:
            return policies.fixed(self._gamma, batch.limits)
        budget = best_budget(self._old[0], seconds, np.full(len(batch.ids), self._gamma))
        return lagged_topk(batch.confidence, budget, batch.limits)

    def after(self, batch: Batch, drafted: bool, lengths: IntArray, accepted: IntArray, seconds: float) -> None:
        self._old = [*self._old[-1:], batch.confidence]


class Ahead(Causal):
    """The causal scan that crosses a step on predicted continuations (`schedule/lookahead.py`); without a guard."""

    def __init__(self, cost: CostModel, gamma: int) -> None:
        super().__init__(cost, gamma)
        self._mean = 0.6 * np.ones(gamma)

    def lengths(self, batch: Batch) -> IntArray:
        seconds = self._cost.round_seconds(len(batch.ids), batch.context, self._gamma)
        predicted = np.broadcast_to(self._mean, batch.confidence.shape)
        return causal_scan_ahead(batch.confidence, predicted, seconds, batch.limits)

    def after(self, batch: Batch, drafted: bool, lengths: IntArray, accepted: IntArray, seconds: float) -> None:
        self._mean += min(1.0, 0.01 * len(batch.ids)) * (batch.confidence.mean(axis=0) - self._mean)


class Guarded:
    """What `serve` runs: mode by the guard, lengths by the scheduler (`schedule/adaptive.py`)."""

    def __init__(self, cost: CostModel, gamma: int, scheduler: str) -> None:
        self._adaptive = Adaptive(cost, gamma, Guard(gamma), scheduler, explore=0.01)  # type: ignore[arg-type]
        self._decision: Decision | None = None

    def draft(self, batch: Batch) -> bool:
        self._decision = self._adaptive.before(batch.ids, batch.context)
        return self._decision.mode > 0

    def lengths(self, batch: Batch) -> IntArray:
        assert self._decision is not None
        return self._adaptive.lengths(self._decision, batch.confidence, batch.limits)

    def after(self, batch: Batch, drafted: bool, lengths: IntArray, accepted: IntArray, seconds: float) -> None:
        assert self._decision is not None
        confidence = batch.confidence if drafted else None
        self._adaptive.after(batch.ids, self._decision, confidence, lengths, accepted, seconds)


def arms(cost: CostModel, gamma: int) -> dict[str, Arm]:
    """Every policy by name, believing `cost`."""
    return {
        "none": Fixed(0),
        **{f"fixed{length}": Fixed(length) for length in range(1, gamma + 1)},
        "threshold": Threshold(0.3),
        "causal": Causal(cost, gamma),
        "causal ahead": Ahead(cost, gamma),
        "lagged": Lagged(cost, gamma),
        "adaptive causal": Guarded(cost, gamma, "causal"),
        "adaptive lagged": Guarded(cost, gamma, "lagged"),
    }


@dataclass(frozen=True)
class Outcome:
    """Of the measured part of a run.

    Attributes:
        throughput: tokens a simulated second.
        budget: mean draft tokens a request and round, of requests that are not within γ of their end.
        seconds: mean of a round.
        rounds: measured.
    """

    throughput: float
    budget: float
    seconds: float
    rounds: int


class _Places:
    """The running requests; a finished one is replaced at once by the next of an endless, repeatable list."""

    def __init__(self, chains: Chains, concurrency: int, seed: int) -> None:
        self._chains, self._seed, self._count = chains, seed, concurrency
        self._order = np.random.default_rng(seed).permutation(len(chains.rounds))
        self._next = 0
        self.chain, self.at, self.left, self.context, self.ids = (
            np.zeros(concurrency, dtype=np.int64) for _ in range(5)
        )
        self.admitted = 0

    def fill(self, part: int) -> None:
        """Start over with the list's part of this number."""
        self._next = 1_000_000 * part
        for place in range(self._count):
            self._admit(place)
            # In the steady state requests are anywhere in their answers.
            self.left[place] = 1 + self.left[place] * (place + 1) // (self._count + 1)
        self.admitted = 0

    def advance(self, emitted: IntArray) -> None:
        """A round emitted `[R]` tokens."""
        self.at += 1
        self.left -= emitted
        self.context += emitted
        for place in np.flatnonzero(self.left <= 0).tolist():
            self._admit(place)

    def _admit(self, place: int) -> None:
        number, self._next, self.admitted = self._next, self._next + 1, self.admitted + 1
        rng = np.random.default_rng((self._seed, number))
        # Every recorded request comes up before any comes again.
        self.chain[place] = self._order[number % len(self._order)]
        self.at[place] = rng.integers(self._chains.rounds[self.chain[place]])
        self.left[place], self.context[place] = np.exp(rng.uniform(np.log([32, 64]), np.log([512, 1024]))).astype(int)
        self.ids[place] = number


def simulate(
    arm: Arm,
    truth: CostModel,
    chains: Chains,
    concurrency: int,
    *,
    warm_seconds: float = 0.0,
    requests: int = 100,
    noise: float = 0.03,
    seed: int = 0,
) -> Outcome:
    """Keep `concurrency` requests running. Prefills take no time.

    Answers have 32 to 512 tokens and contexts start at 64 to 1,024, both even in the logarithm. What is counted is the
    same list of requests for every arm; what an arm learns from before that are others.

    Args:
        arm: the policy, with what it believes.
        truth: what rounds really take, apart from `noise` (of the log).
        chains: the requests.
        concurrency: requests at a time.
        warm_seconds: simulated time before anything is counted.
        requests: counted ones at least, and three for every place.
        seed: of requests and noise.
    """
    gamma = chains.gamma
    clock = np.random.default_rng((seed, concurrency, 1))
    places = _Places(chains, concurrency, seed)
    places.fill(part=1)
    elapsed, warm = 0.0, warm_seconds > 0
    tokens = verified = 0.0
    counted = rows = 0
    if not warm:
        places.fill(part=0)
    while warm or places.admitted < max(requests, 3 * concurrency):
        row = places.at % chains.rounds[places.chain]
        batch = Batch(
            places.ids.tolist(),
            int(places.context.sum()),
            np.minimum(gamma, places.left - 1),
            chains.confidence[places.chain, row],
        )
        drafted = arm.draft(batch)
        lengths = arm.lengths(batch) if drafted else np.zeros(concurrency, dtype=np.int64)
        accepted = np.minimum(chains.accepted[places.chain, row], lengths)
        if drafted:
            seconds = float(truth.round_seconds(concurrency, batch.context, gamma)[concurrency + int(lengths.sum())])
        else:
            seconds = truth.undrafted_seconds(concurrency, batch.context)
        seconds *= float(np.exp(clock.normal(0.0, noise)))
        arm.after(batch, drafted, lengths, accepted, seconds)
        places.advance(1 + accepted)
        elapsed += seconds
        if not warm:
            counted += 1
            tokens += concurrency + float(accepted.sum())
            free = batch.limits == gamma
            verified += float(lengths[free].sum())
            rows += int(free.sum())
        elif elapsed >= warm_seconds:
            warm, elapsed = False, 0.0
            places.fill(part=0)
    return Outcome(tokens / elapsed, verified / max(rows, 1), elapsed / counted, counted)
