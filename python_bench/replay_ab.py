"""The A/B's report for machines that are not at hand: A SIMULATION on GPU-shaped costs, no model runs.

python python_bench/replay_ab.py                       # plain, mtp-1, dspark-fixed and dspark on all three GPU tables
python python_bench/replay_ab.py --table h200-moe --loads 1 8 64 256

The costs are those of `replay_tables.py`. MTP-1 verifies one draft token in every round; its draft is one layer and
costs half of what DSpark's costs, and its token is accepted as often as DSpark's first one.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

import replay_tables as tables
from replay_arms import Arm, Fixed, Guarded, simulate
from replay_traffic import LARGE, Chains, generate
from timing import command
from tqdm import tqdm

from sglang_dspark.ab.catalogue import CATALOGUE, Chosen
from sglang_dspark.ab.compare import THROUGHPUT, USER_SPEED
from sglang_dspark.ab.report import write_reports
from sglang_dspark.ab.results import Question, collect
from sglang_dspark.ab.store import Cell, Store
from sglang_dspark.ab.traffic import Scenario
from sglang_dspark.evaluate import arms as serving
from sglang_dspark.evaluate.provenance import machine, now
from sglang_dspark.schedule.cost import CostModel

GAMMA = 7
GPUS = {
    "h100-8b": (tables.H100, tables.DENSE_8B),
    "h200-8b": (tables.H200, tables.DENSE_8B),
    "h200-moe": (tables.H200, tables.MOE_LARGE),
}
_MTP_DRAFT = 0.5
_WARM_SECONDS = 5.0
_NAMES = ("plain", "mtp-1", "dspark-fixed", "dspark")


def main() -> int:
    """Simulate every table and write its reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--table", choices=list(GPUS), action="append", help="these only")
    add("--loads", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256])
    add("--repetitions", type=int, default=5, help="seeds of requests and noise")
    add("--requests", type=int, default=60, help="counted requests of a run, at least")
    add("--slo", type=float, nargs="+", default=[], help="tok/s per user to compare throughput at")
    add("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    options = parser.parse_args()
    for name in options.table or GPUS:
        folder = options.output / f"replay-{name}"
        paths = replay(name, options, folder)
        print((folder / "report.md").read_text(encoding="utf-8").split("###")[0])
        print(f"written: {', '.join(path.name for path in paths)} in {folder.name}\n")
    return 0


def replay(name: str, options: argparse.Namespace, folder: Path) -> list[Path]:
    """One table: all arms at all loads, and the reports."""
    started = now()
    cells = []
    with tqdm(total=options.repetitions * len(options.loads) * len(_NAMES), desc=name, disable=None) as bar:
        for repetition in range(options.repetitions):
            chains = generate(LARGE, gamma=GAMMA, seed=repetition)
            for load in options.loads:
                for arm in _NAMES:
                    cells.append(cell(name, arm, load, repetition, chains, options))
                    bar.update()
    chosen = [Chosen(arm, CATALOGUE[arm].description, serving.Arm(arm)) for arm in _NAMES]
    scenarios = [Scenario("closed", load, 0.0) for load in options.loads]
    about = {
        "what": "SIMULATION: no model ran and no cost was measured. Rooflines of a GPU, generated requests; see "
        "docs/benchmarks.md, Replay.",
        "command": command(),
        "started": started,
        "finished": now(),
        "machine": machine(),
        "dataset": f"simulated, costs shaped like {name}, {chains.source.split(', seed')[0]}",
        "serve_flags": "",
        "settings": {key: value for key, value in vars(options).items() if key != "output"},
    }
    with tempfile.TemporaryDirectory() as temporary:
        store = Store(Path(temporary) / "cells.jsonl", {})
        store.cells = cells
        store.notes["layout"] = "simulated"
        return write_reports(
            collect(store, chosen, scenarios, Question("dspark", "mtp-1", tuple(options.slo)), about), folder
        )


def cell(table: str, name: str, load: int, repetition: int, chains: Chains, options: argparse.Namespace) -> Cell:
    """One simulated run."""
    truth, arm = setting(table, name)
    outcome = simulate(arm, truth, chains, load, warm_seconds=_WARM_SECONDS, requests=options.requests, seed=repetition)
    accept = outcome.throughput * outcome.seconds / load
    figures = {
        "requests": max(options.requests, 3 * load),
        "failed": 0,
        THROUGHPUT: outcome.throughput,
        USER_SPEED: outcome.throughput / load,
        "tpot_p50": load / outcome.throughput,
        "budget": outcome.budget,
        "accept_length": accept,
        "verified_per_emitted": (1 + outcome.budget) / accept,
    }
    return Cell(name, Scenario("closed", load, 0.0).key, repetition, 0.0, figures, [])


def setting(table: str, name: str) -> tuple[CostModel, Arm]:
    """What rounds of an arm cost, and how it chooses lengths."""
    gpu, model = GPUS[table]
    if name == "mtp-1":
        lighter = dataclasses.replace(model, draft=model.draft * _MTP_DRAFT)
        return tables.gpu_table(gpu, lighter, gamma=1), Fixed(1)
    truth = tables.gpu_table(gpu, model, GAMMA)
    arms: dict[str, Arm] = {
        "plain": Fixed(0),
        "dspark-fixed": Fixed(GAMMA),
        "dspark": Guarded(truth, GAMMA, "lagged"),
    }
    return truth, arms[name]


if __name__ == "__main__":
    sys.exit(main())
