"""Each rank says what round it runs: in its log, and in a file `serve` waits for."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_dspark import __version__

logger = logging.getLogger(__name__)


def announce(worker: Any, not_covered: list[str]) -> None:
    """Log the active round and, when `serve` asked for it, leave a report for this rank."""
    parallel = get_parallel()
    state = {
        "version": __version__,
        "pid": os.getpid(),
        "gamma": worker.gamma,
        "policy": worker.config.policy,
        "engine_round": not_covered,
    }
    if not_covered:
        logger.warning("DSpark %s: the engine's own round runs: %s", __version__, "; ".join(not_covered))
    elif parallel.tp_rank == 0:
        logger.info("DSpark %s: own round, gamma=%d, policy=%s", __version__, worker.gamma, worker.config.policy)
    folder = worker.config.report_dir
    if folder is not None:
        name = f"tp{parallel.tp_rank}-pp{parallel.pp_rank}-dp{getattr(parallel, 'attn_dp_rank', 0)}-{os.getpid()}.json"
        partial = Path(folder, name + ".partial")
        partial.write_text(json.dumps(state))
        partial.rename(Path(folder, name))
