"""What a round will verify: decided partly before its draft, from the past, and partly from its confidences."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_dspark.config import DSparkConfig
from sglang_dspark.engine.recorder import Recorder
from sglang_dspark.engine.rounds import Round
from sglang_dspark.engine.seeds import is_coupled
from sglang_dspark.engine.watch import Watch
from sglang_dspark.errors import ConfigError
from sglang_dspark.ops.draft_block import DraftBlock
from sglang_dspark.schedule import policies
from sglang_dspark.schedule.adaptive import Adaptive
from sglang_dspark.schedule.calibration import Calibration
from sglang_dspark.schedule.survival import IntArray
from sglang_dspark.schedule.sweep import Sweep


class Planner:
    """Applies the configured policy, and follows each round until what came of it is known.

    Args:
        config: the server's settings.
        gamma: draft tokens of a block.
        has_confidence: whether the checkpoint has a confidence head.
        adaptive: the state of the policies that schedule by cost; None where there is no cost table to go by, and
            every request verifies the same number of tokens.
        calibration: corrects the confidences before anything reads them.
        watch: metrics and fuses.
        recorder: where finished rounds go, if anywhere.
        agree: makes the first rank's numbers those of its whole group; None where there is one rank.
        behind: rounds to wait before reading what a round emitted: 0 where the device is the host, else enough that
            reading does not wait for the device.

    Raises:
        ConfigError: the policy reads confidences and there are none.
    """

    def __init__(
        self,
        config: DSparkConfig,
        gamma: int,
        has_confidence: bool,
        adaptive: Adaptive | None = None,
        calibration: Calibration | None = None,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
        agree: Callable[[IntArray], IntArray] | None = None,
        behind: int = 0,
    ) -> None:
        if config.policy == "threshold" and not has_confidence:
            raise ConfigError(
                "--dspark-policy threshold reads the draft's confidence head, and this checkpoint has none; "
                "use --dspark-policy fixed"
            )
        self._config = config
        self._gamma = gamma
        self._length = gamma if config.verify_length is None else config.verify_length
        self._sweep = Sweep(gamma) if config.policy == "sweep" else None
        self._adaptive, self._calibration = adaptive, calibration
        self._watch = watch if watch is not None else Watch(gamma)
        self._recorder = recorder
        self._agree = agree
        self._behind = behind
        self._running: Round | None = None
        self._finished: deque[Round] = deque()

    @property
    def policy(self) -> str:
        """What decides now: the configured policy, or what stands in for it."""
        return "adaptive" if self._adaptive is not None else self._config.policy_without_costs

    def begin(self, reqs: Sequence[Any], context: int, free: float = 1.0) -> Round:
        """Plan what does not depend on this round's draft.

        Args:
            reqs: the engine's requests, in batch order.
            context: committed KV tokens of all of them.
            free: part of the KV pool that is free or could be.
        """
        entered = time.perf_counter()
        self._close_running(reqs)
        most = self._watch.most(free)
        plan = Round(
            started=entered,
            requests=list(reqs),
            context=context,
            mode=f"fixed{self._length}",
            drafts=self._length > 0 and most != 0,
            temperatures=np.array([_temperature(req) for req in reqs], dtype=np.float32),
            coupled=np.array([is_coupled(req, self._config.coupling) for req in reqs], dtype=np.bool_),
            explored=np.full(len(reqs), self._length == self._gamma and most is None),
            most=most,
        )
        if self._adaptive is not None:
            decision = self._adaptive.before([req.rid for req in reqs], context, most)
            plan.decision, plan.explored, plan.drafts = decision, decision.explored, decision.mode > 0
            plan.mode = "adaptive" if decision.mode > self._gamma else f"fixed{decision.mode}"
        elif self.policy == "threshold":
            plan.mode, plan.drafts, plan.explored[:] = "threshold", most != 0, False
        elif self._sweep is not None:
            point = self._sweep.next(len(reqs))
            plan.mode, plan.drafts, plan.planned, plan.requested = "sweep", point.drafts, point.lengths, point.tokens
            plan.explored[:] = False
        if not plan.drafts:
            plan.mode = "sweep" if self._sweep is not None else "none"
            plan.explored[:] = False
        self._running = plan
        plan.mark("plan")
        return plan

    def lengths(self, plan: Round, block: DraftBlock) -> list[int]:
        """Verify lengths ℓ_r in 0..γ, never past what a request may still emit or what its draft left usable."""
        # ℓ + 1 tokens can be emitted, hence the - 1. Under overlapped scheduling the count of tokens already emitted is
        # a round old, which makes the limit larger, never too small.
        usable, plan.confidence = self._on_host(block)
        if plan.drafts:
            self._watch.drafted(usable)
        remaining = np.array([0 if r.finished() else _remaining_output(r) - 1 for r in plan.requests], dtype=np.int64)
        limits = np.minimum(np.clip(remaining, 0, self._gamma), usable)
        plan.limits = limits if plan.most is None else np.minimum(limits, plan.most)
        plan.lengths = self._decide(plan, plan.limits)
        if self._agree is not None:
            # Confidences may differ in their last digits from rank to rank; the rows of a verify may not.
            plan.lengths = self._agree(plan.lengths)
        if plan.planned is not None and not np.array_equal(plan.lengths, plan.planned):
            # A request near its end: the round is not what the sweep asked for, and nothing is claimed of it.
            plan.requested = None
        return plan.lengths.tolist()

    def _decide(self, plan: Round, limits: IntArray) -> IntArray:
        if plan.confidence is not None:
            plan.calibrated = plan.confidence
            if self._calibration is not None:
                plan.calibrated = self._calibration.apply(plan.confidence, plan.temperatures, plan.coupled)
        if plan.decision is not None and self._adaptive is not None:
            if plan.calibrated is None:
                return policies.fixed(0, limits)
            believed, capped = self._watch.trusted(plan.calibrated, limits, plan.temperatures, plan.coupled)
            # Explored requests stay outside the fuse: they are how it finds that it may give way.
            return self._adaptive.lengths(plan.decision, believed, np.where(plan.explored, limits, capped))
        if plan.planned is not None:
            return np.minimum(plan.planned, limits)
        if self.policy == "threshold":
            assert plan.calibrated is not None or not plan.drafts
            if plan.calibrated is None:
                return policies.fixed(0, limits)
            return policies.threshold(plan.calibrated, self._config.survival_threshold, limits)
        return policies.fixed(self._length, limits)

    def interrupt(self) -> None:
        """Something else than decoding runs now; the round before it cannot be timed by the start of the next."""
        self._close_running(None)

    def _close_running(self, reqs: Sequence[Any] | None) -> None:
        running, self._running = self._running, None
        if running is not None and running.ran:
            if reqs is not None and running.same_requests(reqs):
                running.end()
            self._finished.append(running)
        while len(self._finished) > self._behind:
            self._came_out(self._finished.popleft())

    def _came_out(self, done: Round) -> None:
        assert done.lengths is not None
        if self._adaptive is not None and done.decision is not None:
            rids = [req.rid for req in done.requests]
            self._adaptive.after(rids, done.decision, done.calibrated, done.lengths, done.accepted(), done.seconds)
        self._watch.finished(done, self._adaptive)
        if self._recorder is not None:
            self._recorder.put(done)

    def _on_host(self, block: DraftBlock) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
        """What the policy reads, in one copy. On a GPU it waits for the draft; lengths are decided on the host."""
        reads = self.policy in ("adaptive", "threshold") or self._recorder is not None
        if not reads or block.confidence is None:
            return block.usable.cpu().numpy(), None
        # Up to 255, so that float32 holds it.
        packed = torch.cat([block.usable.unsqueeze(1).to(torch.float32), block.confidence], dim=1).cpu().numpy()
        return packed[:, 0].astype(np.int64), packed[:, 1:]


def _temperature(req: Any) -> float:
    params = req.sampling_params
    return 0.0 if params.top_k <= 1 else float(params.temperature)


def _remaining_output(req: Any) -> int:
    limit = req.sampling_params.max_new_tokens
    return 1 << 30 if limit is None else limit - len(req.output_ids)
