"""A load that steps 1 -> N -> 1: how soon the budget follows, and whether a request stalls meanwhile.

python python_bench/bench_step.py
python python_bench/bench_step.py --users 16 --plateau-seconds 20

One user asks all the time; N - 1 others come for the middle plateau. Plain serving meets the same step, because a
request also waits while the newcomers' prompts are read, with drafts or without. Needs a profile of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_serving import served_tokenizer, server_flags
from timing import RESULTS, write_results

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.arms import BENCH_FLAGS, KNOWN_ARMS
from sglang_dspark.evaluate.load import Request, Result, open_session, send
from sglang_dspark.evaluate.prompts import apply_chat, load_prompts
from sglang_dspark.evaluate.rounds import Round, RoundLog
from sglang_dspark.evaluate.server import ServerProcess

# Rounds of the running median: probes of three rounds do not move it.
MEDIAN_ROUNDS = 9


@dataclass(frozen=True)
class Steps:
    """When the load changed, Unix seconds, and what every request got."""

    up: float
    down: float
    end: float
    results: list[tuple[float, Result]]


def main() -> int:
    """Run both servers, print, write JSON."""
    options = parse_options()
    try:
        payload = {"settings": {"users": options.users, "plateau_seconds": options.plateau_seconds}}
        payload |= {name: measure(name, options) for name in ("plain", "dspark")}
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report(payload))
    print(f"written: {write_results(options.name, payload, options.results)}")
    return 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--users", type=int, default=32, help="of the middle plateau")
    add("--plateau-seconds", type=float, default=25.0)
    add("--max-new-tokens", type=int, default=64)
    add("--serve-flags", default="", help="flags of serve for both")
    add("--prompts", help="JSONL with id, domain, prompt (default: the package's own)")
    add("--max-total-tokens", type=int, default=12288)
    add("--context-length", type=int, default=2048)
    add("--name", default="step")
    add("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One server through two steps; the first pass, in which it learns what rounds cost, is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        record = () if name == "plain" else ("--dspark-record", folder)
        flags = (*KNOWN_ARMS[name].flags, *BENCH_FLAGS, *server_flags(options, options.users), *record)
        with ServerProcess(flags, name=name) as server:
            tokenizer = served_tokenizer(server)
            sampling = {"temperature": 0.0, "max_new_tokens": options.max_new_tokens, "ignore_eos": True}
            requests = [
                Request(p.id, p.domain, apply_chat(tokenizer, p.prompt), sampling)
                for p in load_prompts(options.prompts, None, seed=0)
            ]
            for _ in range(2):
                steps = asyncio.run(step_load(server.base_url, requests, options))
        figures = waits(steps)
        if name != "plain":
            figures |= budgets(list(RoundLog.open(Path(folder))), steps)
    return figures


async def step_load(base_url: str, requests: Sequence[Request], options: argparse.Namespace) -> Steps:
    """One user for three plateaus, the others for the middle one."""
    results: list[tuple[float, Result]] = []
    number = iter(range(10**9))

    async with open_session() as session:

        async def user(until: float) -> None:
            while time.time() < until:
                sent = time.time()
                results.append((sent, await send(session, base_url, requests[next(number) % len(requests)])))

        begin = time.time()
        up, down, end = (begin + n * options.plateau_seconds for n in (1, 2, 3))
        alone = asyncio.create_task(user(end))
        await asyncio.sleep(up - time.time())
        await asyncio.gather(*(user(down) for _ in range(options.users - 1)))
        down = time.time()  # when the last of them was answered
        await alone
    if failed := [result for _, result in results if result.error]:
        raise DSparkError(f"{len(failed)} requests failed, first: {failed[0].error}")
    return Steps(up, down, time.time(), results)


def waits(steps: Steps) -> dict[str, Any]:
    """Gaps between pieces of an answer: the usual one on the middle plateau, and the longest of all."""
    gaps = [
        (sent + before, now - before)
        for sent, result in steps.results
        for (before, _), (now, _) in zip(result.arrivals, result.arrivals[1:], strict=False)
    ]
    middle = steps.up + (steps.down - steps.up) / 2
    steady = float(np.median([gap for at, gap in gaps if middle <= at < steps.down - 2]))
    longest = max(gap for _, gap in gaps)
    return {"steady_step_seconds": steady, "longest_gap_seconds": longest, "longest_over_steady": longest / steady}


def budgets(rounds: Sequence[Round], steps: Steps) -> dict[str, Any]:
    """Draft tokens a request, on each plateau and how long after each step they had followed."""
    alone, crowded, again = (
        level(rounds, begin, end)
        for begin, end in ((steps.up - 8, steps.up), (steps.down - 8, steps.down - 2), (steps.end - 8, steps.end))
    )
    return {
        "alone": alone,
        "crowded": crowded,
        "alone_again": again,
        "follows_up_seconds": followed(rounds, steps.up, steps.down - 2, alone, crowded),
        "follows_down_seconds": followed(rounds, steps.down, steps.end, crowded, again),
    }


def level(rounds: Sequence[Round], begin: float, end: float) -> float:
    """Mean draft tokens a request between two times, probes (three rounds of another mode) included."""
    inside = [r for r in rounds if begin <= r.time < end]
    return sum(r.tokens - r.requests for r in inside) / sum(r.requests for r in inside)


def followed(rounds: Sequence[Round], begin: float, end: float, before: float, after: float) -> float:
    """Seconds after `begin` until the running median is nearer to the new level than to the old one, and stays there.

    Stays: for the first half of the plateau, since later excursions are the schedule following its traffic.
    """
    inside = [r for r in rounds if begin <= r.time < end]
    values = np.array([r.tokens / r.requests - 1 for r in inside])
    medians = [np.median(values[max(0, i - MEDIAN_ROUNDS + 1) : i + 1]) for i in range(len(values))]
    late = [
        r.time - begin for r, value in zip(inside, medians, strict=True) if abs(value - after) > abs(value - before)
    ]
    return max((at for at in late if at < (end - begin) / 2), default=0.0)


def report(payload: dict[str, Any]) -> str:
    """Both servers in a few lines."""
    users, dspark, plain = payload["settings"]["users"], payload["dspark"], payload["plain"]
    return (
        f"draft tokens a request: {dspark['alone']:.2f} alone, {dspark['crowded']:.2f} among {users}, "
        f"{dspark['alone_again']:.2f} alone again; followed in {dspark['follows_up_seconds']:.2f} s up, "
        f"{dspark['follows_down_seconds']:.2f} s down\n"
        f"longest gap over the steady step at {users}: {dspark['longest_over_steady']:.1f} "
        f"({dspark['longest_gap_seconds']:.2f} s), plain serving {plain['longest_over_steady']:.1f} "
        f"({plain['longest_gap_seconds']:.2f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())
