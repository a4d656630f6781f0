"""Serving by wrong cost tables: is a server that believes one behind the best fixed choice once it has met the load?

python python_bench/bench_wrong_table.py

The machine's own profile is changed in two ways: the price of a verified token three times as high, and rounds that all
take the same time. Each server meets a load unmeasured for a while first; what it then does is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shlex
import sys
import tempfile
from pathlib import Path

import bench_serving
from bench_schedule import points, scheduled_state, table
from timing import write_results

from sglang_dspark.errors import DSparkError
from sglang_dspark.schedule.cost import Curve, Surface
from sglang_dspark.schedule.profile import Profile

FACTOR = 3.0


def main() -> int:
    """Run, print the table, write JSON and Markdown."""
    options = parse_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        state = scheduled_state(options)
        with tempfile.TemporaryDirectory() as folder:
            wrong = wrong_profiles(Profile.load(Path(state["profile"])), Path(folder))
            flags = {name: f"{name}=--dspark-profile {shlex.quote(str(path))}" for name, path in wrong.items()}
            fixed = [f"l{n}=--dspark-verify-length {n}" for n in (1, int(state["gamma"]))]
            options.arm = ["plain", *fixed, *flags.values()]
            payload = bench_serving.serving(options)[0]
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return bench_serving.EXIT_FAILED
    found = points("all", payload, tuple(wrong))
    for about in payload["arms"].values():
        about["flags"] = about["flags"].replace(folder, "DIR")
    text = table(found)
    path = write_results(options.name, {"points": found, **payload}, options.results)
    path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nwritten: {path} and {path.with_suffix('.md').name}")
    return 0


def parse_options() -> argparse.Namespace:
    """The command line of `bench_serving`, with the settings of this comparison."""
    return bench_serving.parse_options(
        repetitions=5, concurrency=[1, 16], requests_per_user=1, min_requests=8, max_new_tokens=64,
        max_total_tokens=12288, name="schedule_wrong", long_warm_up=True, steady_seconds=6.0,
    )  # fmt: skip


def wrong_profiles(profile: Profile, folder: Path) -> dict[str, Path]:
    """Files of the two wrong tables, with the identity of the right one, so that they are believed."""
    dear = dataclasses.replace(profile, drafted=priced(profile.drafted, FACTOR))
    flat = dataclasses.replace(profile, drafted=flattened(profile.drafted), undrafted=None)
    paths = {}
    for name, wrong in (("tokens x3", dear), ("flat", flat)):
        key = name.replace(" ", "-")
        paths[key] = folder / f"{key}.json"
        dataclasses.replace(wrong, source="synthetic", points=(), held_out_error=None).save(paths[key])
    return paths


def priced(surface: Surface, factor: float) -> Surface:
    """A verified token costs `factor` as much."""
    return dataclasses.replace(
        surface,
        tokens=Curve(surface.tokens.probes, tuple(factor * seconds for seconds in surface.tokens.seconds)),
        token_context_seconds=factor * surface.token_context_seconds,
    )


def flattened(surface: Surface) -> Surface:
    """Every round takes as long as one request's."""
    return Surface(
        surface.bias_seconds,
        Curve(surface.requests.probes, (surface.requests.seconds[0],) * len(surface.requests.probes)),
        Curve(surface.tokens.probes, (surface.tokens.seconds[0],) * len(surface.tokens.probes)),
    )


if __name__ == "__main__":
    sys.exit(main())
