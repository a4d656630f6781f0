"""Every policy over recorded or generated requests, against any cost table: A SIMULATION, for machines not at hand.

python python_bench/replay.py                                        # generated requests, all tables
python python_bench/replay.py --records DIR --profile profiles/x.json   # what calibrate recorded, a measured table too
python python_bench/replay.py --table h200-moe --loads 1 8 64 256
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import replay_tables as tables
from replay_arms import Arm, Guarded, Outcome, arms, simulate
from replay_plot import draw
from replay_traffic import DEMO, LARGE, Chains, generate, recorded
from timing import RESULTS, write_results
from tqdm import tqdm

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.rounds import RoundLog
from sglang_dspark.schedule.cost import CostModel
from sglang_dspark.schedule.profile import Profile

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WRONG_LOADS = (1, 8, 32, 128)
# A wrong table must have been found out by then.
WARM_SECONDS = 30.0
_WARM = 5.0
ADAPTIVE = ("adaptive causal", "adaptive lagged")


def main() -> int:
    """Simulate, print, write JSON and PNG."""
    options = parse_options()
    try:
        payload = replay(options)
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = write_results(options.name, payload, options.results)
    draw(payload, path.with_suffix(".png"))
    print(f"\n{report(payload)}\n\nwritten: {path} and {path.with_suffix('.png').name}")
    return 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--records", type=Path, help="round records with requests at full length (default: generated requests)")
    add("--calibration", type=Path, help="apply this calibration to recorded confidences")
    add("--profile", type=Path, action="append", default=[], help="also replay on this measured profile")
    add("--table", action="append", help="these tables only (default: all)")
    add("--loads", type=int, nargs="+", default=list(LOADS), help="concurrent requests")
    add("--requests", type=int, default=60, help="counted requests of a run, at least")
    add("--no-wrong", action="store_true", help="leave out the runs that believe a wrong table")
    add("--seed", type=int, default=0)
    add("--name", default="replay", help="of the files with the results")
    add("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """All runs, as JSON can hold them."""
    machines = machines_for(options)
    runs = [(name, load) for name in machines for load in loads_of(name, options)]
    wrong = [] if options.no_wrong else [(name, load) for name in wrong_tables(machines) for load in WRONG_LOADS]
    payload: dict[str, Any] = {
        "what": "SIMULATION: no model ran and no table but a profile was measured",
        "settings": {"requests": options.requests, "loads": options.loads, "seed": options.seed},
        "tables": {},
        "wrong": {},
    }
    with tqdm(total=len(runs) + len(wrong), unit="load") as bar:
        for name, (truth, chains) in machines.items():
            entry: dict[str, Any] = {"requests": chains.source, "accept_length": chains.accept_length(), "cells": []}
            for load in loads_of(name, options):
                cell = {
                    arm: run(policy, truth, chains, load, options) for arm, policy in arms(truth, chains.gamma).items()
                }
                entry["cells"].append({"load": load, "arms": {arm: vars(outcome) for arm, outcome in cell.items()}})
                bar.update()
            entry |= summary(entry["cells"], chains.gamma)
            entry["budget_by_domain"] = budget_by_domain(truth, chains, options) if is_gpu(name) else {}
            payload["tables"][name] = entry
        if not options.no_wrong:
            for name, (truth, believed, chains) in wrong_tables(machines).items():
                payload["wrong"][name] = [wrong_cell(truth, believed, chains, load, options) for load in WRONG_LOADS]
                bar.update(len(WRONG_LOADS))
    return payload


def machines_for(options: argparse.Namespace) -> dict[str, tuple[CostModel, Chains]]:
    """Tables by name, each with the requests it is replayed on."""
    large, demo = generate(LARGE, gamma=7, seed=options.seed), generate(DEMO, gamma=5, seed=options.seed)
    if options.records is not None:
        calibration = None
        if options.calibration is not None:
            from sglang_dspark.schedule.calibration import Calibration

            calibration = Calibration.load(options.calibration)
        demo = recorded(RoundLog.open(options.records), calibration)
    found = {
        "h100-8b": (tables.gpu_table(tables.H100, tables.DENSE_8B, large.gamma), large),
        "h200-8b": (tables.gpu_table(tables.H200, tables.DENSE_8B, large.gamma), large),
        "h200-moe": (tables.gpu_table(tables.H200, tables.MOE_LARGE, large.gamma), large),
        "knee": (tables.synthetic(tables.knee), large),
        "stepped": (tables.synthetic(tables.stepped), large),
        "cliff": (tables.synthetic(tables.cliff), large),
        "flat": (tables.synthetic(tables.flat), large),
        "linear": (tables.synthetic(tables.linear), demo),
    }
    found |= {path.stem: (CostModel.from_profile(Profile.load(path)), demo) for path in options.profile}
    if unknown := set(options.table or ()) - set(found):
        raise DSparkError(f"--table {min(unknown)}: no such table; there are {', '.join(found)}")
    return {name: entry for name, entry in found.items() if not options.table or name in options.table}


def wrong_tables(machines: dict[str, tuple[CostModel, Chains]]) -> dict[str, tuple[CostModel, CostModel, Chains]]:
    """Truth, what is believed, requests: for the first GPU-shaped table and for the first of the others.

    No table at all is not among them: `serve` then verifies a fixed length and schedules nothing.
    """
    found = {}
    gpu = [name for name in machines if is_gpu(name)][:1]
    for name in gpu + [name for name in machines if not is_gpu(name)][:1]:
        truth, chains = machines[name]
        believed = {
            "token costs x3": tables.scaled(truth, 3.0),
            "token costs /3": tables.scaled(truth, 1 / 3),
            "cliff": tables.synthetic(tables.cliff),
            "noise": tables.synthetic(tables.noisy),
            "flat": tables.synthetic(tables.flat),
            "another model's": tables.synthetic(tables.linear),
        }
        found |= {f"{name}, believed: {wrong}": (truth, table, chains) for wrong, table in believed.items()}
    return found


def wrong_cell(
    truth: CostModel, believed: CostModel, chains: Chains, load: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The guarded policies with a wrong table against the best fixed arm, which needs no table."""
    fixed = {
        name: run(arm, truth, chains, load, options, 0.0).throughput
        for name, arm in arms(truth, chains.gamma).items()
        if name == "none" or name.startswith("fixed")
    }
    best = max(fixed, key=lambda name: fixed[name])
    ratios = {}
    for scheduler in ("causal", "lagged"):
        arm = Guarded(believed, chains.gamma, scheduler)
        ratios[scheduler] = run(arm, truth, chains, load, options, WARM_SECONDS).throughput / fixed[best]
    return {"load": load, "best": best, **ratios}


def summary(cells: Sequence[dict[str, Any]], gamma: int) -> dict[str, Any]:
    """Of one table: the adaptive policies against every fixed arm, and how the budget follows the load."""
    from scipy.stats import spearmanr

    fixed = ["none", *(f"fixed{length}" for length in range(1, gamma + 1))]
    found: dict[str, Any] = {}
    for adaptive in ADAPTIVE:
        mine = np.array([cell["arms"][adaptive]["throughput"] for cell in cells])
        others = {arm: np.array([cell["arms"][arm]["throughput"] for cell in cells]) for arm in fixed}
        over = {arm: float(np.exp(np.log(mine / theirs).mean())) for arm, theirs in others.items()}
        best = np.max(list(others.values()), axis=0)
        budgets = [cell["arms"][adaptive]["budget"] for cell in cells]
        loads = [cell["load"] for cell in cells]
        varies = len(set(loads)) > 1 and len(set(budgets)) > 1
        found[adaptive] = {
            "over_fixed": over,
            "over_best_single_fixed": min(over.values()),
            "over_best_fixed_of_each_load": (mine / best).tolist(),
            "rank_correlation_of_budget_with_load": float(spearmanr(loads, budgets)[0]) if varies else None,
        }
    return found


def budget_by_domain(truth: CostModel, chains: Chains, options: argparse.Namespace) -> dict[str, list[float]]:
    """Mean draft tokens a request of the guarded lagged policy, by load, for traffic of one domain."""
    found: dict[str, list[float]] = {}
    for domain in dict.fromkeys(chains.domain.tolist()):
        mine = chains.of(domain)
        policies = [(load, Guarded(truth, chains.gamma, "lagged")) for load in options.loads]
        found[domain] = [run(arm, truth, mine, load, options).budget for load, arm in policies]
    return found


def is_gpu(name: str) -> bool:
    """Whether a table is shaped like a GPU; those are looked at most closely."""
    return name.startswith(("h100", "h200"))


def loads_of(name: str, options: argparse.Namespace) -> list[int]:
    """Concurrencies to run a table at."""
    return options.loads if is_gpu(name) else [load for load in options.loads if load in WRONG_LOADS]


def run(
    arm: Arm, truth: CostModel, chains: Chains, load: int, options: argparse.Namespace, warm: float = _WARM
) -> Outcome:
    """One arm at one load."""
    return simulate(arm, truth, chains, load, warm_seconds=warm, requests=options.requests, seed=options.seed)


def report(payload: dict[str, Any]) -> str:
    """What to read first."""
    lines = [
        payload["what"],
        "",
        "| table | accept length | over the best single fixed arm | over each load's best, lowest | budget and load |",
        "|:--|--:|:--|--:|--:|",
    ]
    for name, entry in payload["tables"].items():
        for arm in ADAPTIVE:
            mine = entry[arm]
            best = min(mine["over_fixed"], key=lambda fixed: mine["over_fixed"][fixed])
            correlation = mine["rank_correlation_of_budget_with_load"]
            cells = (
                f"{name}, {arm.removeprefix('adaptive ')}",
                f"{entry['accept_length']:.2f}",
                f"{mine['over_best_single_fixed']:.3f} ({best})",
                f"{min(mine['over_best_fixed_of_each_load']):.3f}",
                "" if correlation is None else f"{correlation:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    if payload["wrong"]:
        lines += ["", "| wrong table | causal over the best fixed arm, by load | lagged |", "|:--|:--|:--|"]
        for name, cells in payload["wrong"].items():
            shown = (" ".join(f"{cell[s]:.3f}" for cell in cells) for s in ("causal", "lagged"))
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
