"""Builds the planner of a worker from the server's settings: cost table, calibration, records, metrics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_dspark.engine.metrics import Metrics
from sglang_dspark.engine.planner import Planner
from sglang_dspark.engine.recorder import Recorder
from sglang_dspark.engine.watch import Watch

logger = logging.getLogger(__name__)


def planner_for(worker: Any, has_confidence: bool, seed: int) -> Planner:
    """The planner of one rank.

    Args:
        worker: its `config`, `gamma`, `device` and server arguments are read.
        has_confidence: whether the checkpoint has a confidence head.
        seed: the same on every rank.
    """
    config, parallel = worker.config, get_parallel()
    rank = f"tp{parallel.tp_rank}-dp{getattr(parallel, 'attn_dp_rank', 0)}"
    recorder = watch = None
    if parallel.tp_rank == 0:
        if config.record is not None:
            header = {"gamma": worker.gamma, "identity": {}}
            recorder = Recorder(Path(config.record), config.record_limit_mib, header, rank)
        state_path = None if config.report_dir is None else Path(config.report_dir, f"{rank}.state")
        facts = {"policy": config.policy, "gamma": worker.gamma}
        metrics = Metrics({"rank": rank}, {"name": "none"}) if worker.server_args.enable_metrics else None
        watch = Watch(worker.gamma, facts, state_path, metrics)
    # Reading what a round emitted waits for the device; two rounds later it is done, even under overlapped scheduling.
    behind = 0 if str(worker.device) == "cpu" else 2
    return Planner(config, worker.gamma, has_confidence, watch=watch, recorder=recorder, behind=behind)
