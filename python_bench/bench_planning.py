"""What planning costs: the host's time by part of a round, at several loads, of the server as it is served by default.

python python_bench/bench_planning.py

Planning is everything that a fixed number of draft tokens would not need: watching finished rounds, forecast, guard,
calibration, the prefix scheduler, metrics.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from bench_serving import make_requests, server_flags
from timing import RESULTS, write_results

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.arms import BENCH_FLAGS
from sglang_dspark.evaluate.endpoints import dspark_state
from sglang_dspark.evaluate.load import run_load
from sglang_dspark.evaluate.prompts import load_prompts
from sglang_dspark.evaluate.server import ServerProcess


def main() -> int:
    """Measure, print, write JSON."""
    options = parse_options()
    flags = [*BENCH_FLAGS, *server_flags(options, max(options.concurrency)), *shlex.split(options.arm_flags)]
    try:
        with ServerProcess(flags, name="planning") as server:
            prompts = load_prompts(options.prompts, None, seed=0)
            cells = [cell(server, prompts, users, options) for users in options.concurrency]
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for found in cells:
        parts = ", ".join(f"{part} {1e3 * seconds:.2f}" for part, seconds in found["seconds_of_a_round"].items())
        print(f"{found['users']:3d} users: planning {found['planning']:.2%} of a round ({parts} ms)")
    path = write_results(options.name, {"flags": options.arm_flags, "cells": cells}, options.results)
    print(f"written: {path}")
    return 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32])
    add("--max-new-tokens", type=int, default=96)
    add("--arm-flags", default="", help="flags of serve, such as '--dspark-policy fixed'")
    add("--serve-flags", default="", help=argparse.SUPPRESS)
    add("--prompts", help="JSONL with id, domain, prompt (default: the package's own)")
    add("--max-total-tokens", type=int, default=12288)
    add("--context-length", type=int, default=2048)
    add("--name", default="planning")
    add("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def cell(server: ServerProcess, prompts: list[Any], users: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds by part and round at this load, after as much of it as warms up."""
    options.temperature, options.ignore_eos = [0.0], True
    requests = make_requests(server, prompts[:users], options)
    run_load(server.base_url, requests, users)
    before = snapshot(server)
    run_load(server.base_url, requests, users)
    after = snapshot(server)
    rounds = after["rounds"] - before["rounds"]
    spent = {part: (after["parts"][part] - before["parts"].get(part, 0.0)) / rounds for part in after["parts"]}
    return {
        "users": users,
        "rounds": rounds,
        "seconds_of_a_round": spent,
        "planning": spent["plan"] / sum(spent.values()),
    }


def snapshot(server: ServerProcess) -> dict[str, Any]:
    """Rounds and seconds by part so far; the state is written twice a second, so a round or two may be missing."""
    (state,) = dspark_state(server.base_url).values()
    return {"rounds": sum(state["rounds"].values()), "parts": dict(state["part_seconds"])}


if __name__ == "__main__":
    sys.exit(main())
