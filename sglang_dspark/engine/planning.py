"""Builds the planner of a worker from the server's settings: cost table, calibration, records, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite

from sglang_dspark.calibrate.store import find_calibration, reason_against
from sglang_dspark.config import DSparkConfig
from sglang_dspark.engine.metrics import Metrics
from sglang_dspark.engine.planner import Planner
from sglang_dspark.engine.recorder import Recorder
from sglang_dspark.engine.watch import Watch
from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity
from sglang_dspark.profile.store import find_profile
from sglang_dspark.schedule.adaptive import Adaptive, Scheduler
from sglang_dspark.schedule.calibration import Calibration
from sglang_dspark.schedule.cost import CostModel
from sglang_dspark.schedule.guard import Guard
from sglang_dspark.schedule.profile import Profile
from sglang_dspark.schedule.survival import IntArray

logger = logging.getLogger(__name__)

# Arguments of the engine that `Identity.of_server` reads.
_IDENTIFYING = (
    *("model_path", "speculative_draft_model_path", "device", "dtype", "tp_size", "dp_size"),
    *("page_size", "attention_backend"),
)
_BY_COST = ("auto", "causal", "lagged")


def planner_for(worker: Any, has_confidence: bool, seed: int) -> Planner:
    """The planner of one rank.

    Args:
        worker: its `config`, `gamma`, `device` and server arguments are read.
        has_confidence: whether the checkpoint has a confidence head.
        seed: the same on every rank.

    Raises:
        ConfigError: a cost table or calibration named by the user cannot be read.
    """
    config, parallel = worker.config, get_parallel()
    agree = group_decision(worker) if parallel.tp_size > 1 else None
    arguments = {name: getattr(worker.server_args, name) for name in _IDENTIFYING}
    identity = Identity.of_server(arguments, gamma=worker.gamma, support=config.support)
    first = parallel.tp_rank == 0
    profile, profile_path, adaptive = None, None, None
    policy: str = config.policy_without_costs
    if config.policy in _BY_COST and config.verify_length is None:
        profile, profile_path = _profile(config, identity, has_confidence, aloud=first)
    calibration, calibration_path = _calibration(config, identity, aloud=first) if has_confidence else (None, None)
    if profile is not None:
        kind, slo = config.parsed_objective()
        guard = Guard(worker.gamma, config.min_gain, kind, slo)
        overlapped = not worker.server_args.disable_overlap_schedule
        scheduler: Scheduler = (
            "lagged" if config.policy == "lagged" or (config.policy == "auto" and overlapped) else "causal"
        )
        cost, policy = CostModel.from_profile(profile), scheduler
        adaptive = Adaptive(cost, worker.gamma, guard, scheduler, config.explore, seed & 0xFFFF_FFFF, agree)
    rank = f"tp{parallel.tp_rank}-dp{getattr(parallel, 'attn_dp_rank', 0)}"
    facts = {
        "policy": policy,
        "gamma": worker.gamma,
        "profile": None if profile_path is None else str(profile_path),
        "calibration": None if calibration_path is None else str(calibration_path),
        "identity": identity.as_dict(),
    }
    recorder, metrics, state_path = None, None, None
    if first:
        if config.record is not None:
            header = {"gamma": worker.gamma, "identity": identity.as_dict()}
            recorder = Recorder(Path(config.record), config.record_limit_mib, header, rank)
        if worker.server_args.enable_metrics:
            labels = {"name": "none"} if profile_path is None else {"name": profile_path.stem, **_texts(identity)}
            metrics = Metrics({"rank": rank}, labels)
        state_path = None if config.report_dir is None else Path(config.report_dir, f"{rank}.state")
    # Reading what a round emitted waits for the device; two rounds later it is done, even under overlapped scheduling.
    behind = 0 if str(worker.device) == "cpu" else 2
    watch = Watch(worker.gamma, facts, state_path, metrics)
    return Planner(config, worker.gamma, has_confidence, adaptive, calibration, watch, recorder, agree, behind)


def group_decision(worker: Any) -> Callable[[IntArray], IntArray]:
    """The first rank's numbers for all ranks: what a rank measured or computed for itself must not steer it alone."""

    def agree(values: IntArray) -> IntArray:
        shared = torch.from_numpy(values).to(worker.device)
        return worker._tp_sync.sync(SpecTpSyncSite.DSPARK_PLAN, shared).cpu().numpy()

    return agree


def _profile(
    config: DSparkConfig, identity: Identity, has_confidence: bool, aloud: bool
) -> tuple[Profile | None, Path | None]:
    """The cost table to schedule by, or None, said once with the reason."""
    path, reasons = None, []
    if not has_confidence:
        reasons = ["the draft has no confidence head"]
    elif config.profile == "none":
        reasons = ["--dspark-profile none"]
    elif config.profile == "auto":
        path, reasons = find_profile(identity)
    else:
        named = Path(config.profile)
        found = Profile.load(named)
        against = identity.differences(found.identity) if found.identity is not None else []
        reasons = [f"{named}: {found.trouble or '; '.join(against)}"] if found.trouble or against else []
        path = None if reasons else named
    if path is None:
        if aloud:
            logger.warning(
                "DSpark: no cost table, so every request verifies the same number of draft tokens and nothing is "
                "scheduled (%s). Measure one with python -m sglang_dspark profile and the flags of this server.",
                "; ".join(reasons),
            )
        return None, None
    if aloud:
        logger.info("DSpark: scheduling by %s", path)
    return Profile.load(path), path


def _calibration(config: DSparkConfig, identity: Identity, aloud: bool) -> tuple[Calibration | None, Path | None]:
    """The calibration to correct confidences by, or None, said once with the reason.

    Raises:
        ConfigError: the one named by the user missed its gate, or was made for another model.
    """
    accept_failed = config.accept_failed_calibration == "on"
    if config.calibration == "none":
        return None, None
    if config.calibration == "auto":
        path, reasons = find_calibration(identity, accept_failed=accept_failed)
    else:
        path, reasons = Path(config.calibration), []
        against = reason_against(Calibration.load(path), identity, accept_failed=accept_failed)
        if against is not None:
            raise ConfigError(
                f"--dspark-calibration {path}: {against}. Make another with python -m sglang_dspark calibrate, or "
                "serve with --dspark-calibration none"
            )
    if aloud:
        if path is None:
            logger.info("DSpark: confidences as the draft gives them (%s)", "; ".join(reasons))
        else:
            logger.info("DSpark: confidences calibrated by %s", path)
    return (None, None) if path is None else (Calibration.load(path), path)


def _texts(identity: Identity) -> dict[str, str]:
    return {name: str(value) for name, value in identity.as_dict().items()}
