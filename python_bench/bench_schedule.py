"""The scheduled server against plain serving and every fixed verify length: is it ever slower than the best of them?

python python_bench/bench_schedule.py                                     # about an hour on 2 cores
python python_bench/bench_schedule.py --repetitions 3 --concurrency 1 16  # a look

Needs a profile of this machine (`python -m sglang_dspark profile`): without one nothing is scheduled, and this refuses.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

import bench_serving
from scipy.stats import spearmanr
from serving_report import markdown
from timing import write_results

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.endpoints import dspark_state
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.evaluate.statistics import Interval, geometric_mean, paired_ratio

MIXES = {"math": ["math"], "math + chat": ["math", "chat"]}
DEFAULT = "default"


def main() -> int:
    """Run both mixes, print the tables and the verdict, write JSON and Markdown."""
    options = parse_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        gamma = int(scheduled_state(options)["gamma"])
        lengths = sorted({1, 2, 3, gamma} & set(range(1, gamma + 1)))
        fixed = [f"l{n}=--dspark-verify-length {n}" for n in lengths]
        options.arm = ["plain", *fixed, f"{DEFAULT}="]
        mixes = {}
        for name, domains in MIXES.items():
            options.domains = domains
            mixes[name] = bench_serving.serving(options)[0]
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return bench_serving.EXIT_FAILED
    found = [point for name, payload in mixes.items() for point in points(name, payload)]
    judged = judge(found)
    text = "\n\n".join(
        [table(found), verdict(judged), *(f"## {name}\n\n{markdown(payload)}" for name, payload in mixes.items())]
    )
    payload = {"points": found, "judged": judged, "mixes": mixes}
    path = write_results(options.name, payload, options.results)
    path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nwritten: {path} and {path.with_suffix('.md').name}")
    return 0 if judged["never_slower"] else bench_serving.EXIT_FAILED


def parse_options() -> argparse.Namespace:
    """The command line of `bench_serving`, with the settings of this comparison."""
    return bench_serving.parse_options(
        repetitions=8, requests_per_user=1, min_requests=8, max_new_tokens=64, max_total_tokens=12288, name="schedule",
        long_warm_up=True, steady_seconds=6.0,
    )  # fmt: skip


def scheduled_state(options: argparse.Namespace) -> dict[str, Any]:
    """What a server started like the default arm says about itself.

    Raises:
        DSparkError: the server schedules nothing.
    """
    flags = bench_serving.server_flags(options, 1)
    with ServerProcess(flags, name="check") as server:
        (state,) = dspark_state(server.base_url).values()
    if state["policy"] not in ("causal", "lagged"):
        raise DSparkError(
            f"the server runs the policy {state['policy']!r}: no profile fits it. Measure one with "
            "python -m sglang_dspark profile and the flags of --serve-flags"
        )
    return dict(state)


def points(mix: str, payload: dict[str, Any], scheduled: Sequence[str] = (DEFAULT,)) -> list[dict[str, Any]]:
    """Every scheduled arm against the best of the others, at every load."""
    return [point for arm in scheduled for point in points_of(arm, mix, payload, scheduled)]


def points_of(mine: str, mix: str, payload: dict[str, Any], scheduled: Sequence[str]) -> list[dict[str, Any]]:
    """One scheduled arm."""
    cells = payload["cells"]
    found = []
    for users in dict.fromkeys(cell["concurrency"] for cell in cells):
        speeds: dict[str, list[float]] = {}
        verified = []
        for cell in sorted(cells, key=lambda c: c["repetition"]):
            if cell["concurrency"] == users:
                speeds.setdefault(cell["arm"], []).append(cell["output_tokens_per_second"])
                if cell["arm"] == mine:
                    verified.append(cell["verified_per_round"] or 1.0)
        ratios = {arm: paired_ratio(speeds[mine], base) for arm, base in speeds.items() if arm not in scheduled}
        best = min(ratios, key=lambda arm: ratios[arm].value)
        found.append(
            {
                "mix": mix,
                "arm": mine,
                "users": users,
                "best_arm": best,
                "ratio": vars(ratios[best]),
                "ratios": {arm: vars(ratio) for arm, ratio in ratios.items()},
                "budget": sum(verified) / len(verified) - 1.0,
            }
        )
    return found


def judge(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all points: never significantly below 0.99 of the best arm, and budgets that follow the load."""
    ratios = [Interval(**point["ratio"]) for point in found]
    correlations = []
    for mix in dict.fromkeys(p["mix"] for p in found):
        mine = [p for p in found if p["mix"] == mix]
        correlations.append(float(spearmanr([p["users"] for p in mine], [p["budget"] for p in mine]).statistic))
    return {
        "never_slower": all(ratio.high >= 0.99 and ratio.low >= 0.96 for ratio in ratios),
        "geometric_mean": geometric_mean([ratio.value for ratio in ratios]),
        "best_gain": max(ratio.value for ratio in ratios),
        "correlation_of_budget_with_load": max(correlations),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Points as Markdown."""
    lines = ["| mix | arm | users | best other arm | arm / best | draft tokens verified |", "|:--|:--|--:|:--|:--|--:|"]
    lines += [
        f"| {p['mix']} | {p['arm']} | {p['users']} | {p['best_arm']} | {Interval(**p['ratio']).format()} "
        f"| {p['budget']:.2f} |"
        for p in found
    ]
    return "\n".join(lines)


def verdict(judged: dict[str, Any]) -> str:
    """The judgement in a sentence."""
    return (
        f"{'Never' if judged['never_slower'] else 'Somewhere'} slower than the best fixed choice; geometric mean "
        f"{judged['geometric_mean']:.3f}, best point {judged['best_gain']:.3f}, rank correlation of budget and load "
        f"{judged['correlation_of_budget_with_load']:.2f}."
    )


if __name__ == "__main__":
    sys.exit(main())
