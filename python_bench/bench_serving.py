"""One prompt set through several ways to serve the same model: throughput, speed per user, TTFT, accept length.

python python_bench/bench_serving.py                                  # plain against dspark
python python_bench/bench_serving.py --arm plain --arm dspark --arm fixed2='--dspark-verify-length 2'
python python_bench/bench_serving.py --arm plain-stock-attention --arm plain --concurrency 32
python python_bench/bench_serving.py --accept-only --prompts held_out.jsonl
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving_report import accept_table, compare, markdown
from timing import write_results
from tqdm import tqdm

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.accept import measure_accept
from sglang_dspark.evaluate.arms import KNOWN_ARMS, Arm, ArmServers, parse_arm
from sglang_dspark.evaluate.endpoints import flush_cache, server_info, wait_idle
from sglang_dspark.evaluate.load import LoadRun, Request, Result, run_load
from sglang_dspark.evaluate.prompts import Prompt, apply_chat, load_prompts, load_tokenizer
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.evaluate.steady import steady_load
from sglang_dspark.evaluate.summary import summarise

EXIT_FAILED, EXIT_INCONCLUSIVE = 1, 2


def main() -> int:
    """Run, print the tables, write JSON and Markdown."""
    options = parse_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        payload, table = accept_only(options) if options.accept_only else serving(options)
    except DSparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    path = write_results(options.name, payload, options.results)
    path.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(f"\n{table}\n\nwritten: {path} and {path.with_suffix('.md').name}")
    return {"measured": 0, "inconclusive": EXIT_INCONCLUSIVE}.get(payload["verdict"], EXIT_FAILED)


def parse_options(**defaults: Any) -> argparse.Namespace:
    """The command line; `defaults` replace those below, for a script that asks its own question with these means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--arm", action="append", help=f"{', '.join(KNOWN_ARMS)}, or name='flags of serve'; the first is the baseline")
    add("--serve-flags", default="", help="flags of serve for every arm, such as '--model-path DIR --dtype bfloat16'")
    add("--prompts", help="JSONL with id, domain, prompt (default: the package's own)")
    add("--domains", nargs="+", help="keep these domains only")
    add("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32])
    add("--steady-seconds", type=float, help="keep the users busy for so long, instead of a list of requests")
    add("--requests-per-user", type=int, default=2, help="requests of a run: this times its concurrency, ...")
    add("--min-requests", type=int, default=12, help="... but at least this many")
    add("--repetitions", type=int, default=3)
    add("--temperature", type=float, nargs="+", help="one value; several with --accept-only (default 0, there 0 1)")
    add("--max-new-tokens", type=int, default=128)
    add("--ignore-eos", action="store_true", help="generate --max-new-tokens for every request")
    add("--max-total-tokens", type=int, default=24576, help="KV pool of each server, in tokens")
    add("--context-length", type=int, default=2048)
    add("--layout", choices=("auto", "side-by-side", "one-at-a-time"), default="auto")
    add("--accept-only", action="store_true", help="accept length per domain of the last arm, nothing else")
    add("--long-warm-up", action="store_true", help="warm up with a whole run: what adapts has met the load before")
    add("--limit", type=int, help="prompts for --accept-only (default: all)")
    add("--seed", type=int, default=0, help="order of the prompts")
    add("--name", default="serving", help="of the files with the results")
    add("--results", type=Path, default=Path(__file__).parent / "results")
    parser.set_defaults(**defaults)
    options = parser.parse_args()
    options.temperature = options.temperature or ([0.0, 1.0] if options.accept_only else [0.0])
    if len(options.temperature) > 1 and not options.accept_only:
        parser.error("--temperature takes one value without --accept-only")
    for flag in ("repetitions", "max_new_tokens", "requests_per_user", "min_requests"):
        if getattr(options, flag) < 1:
            parser.error(f"--{flag.replace('_', '-')} must be at least 1")
    if min(options.concurrency) < 1:
        parser.error("--concurrency must be at least 1")
    return options


def serving(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Every arm at every concurrency, repetition by repetition."""
    arms = [parse_arm(text) for text in options.arm or ("plain", "dspark")]
    counts = {c: max(options.min_requests, options.requests_per_user * c) for c in options.concurrency}
    prompts = load_prompts(options.prompts, options.domains, seed=options.seed)
    if len(prompts) < max(counts.values()):
        raise DSparkError(
            f"--prompts: {len(prompts)} prompts, but {max(counts.values())} requests at --concurrency "
            f"{max(counts)}; give more prompts, or lower --requests-per-user"
        )
    cells: list[dict[str, Any]] = []
    outputs: dict[tuple[str, int, int], list[Result]] = {}
    with (
        ArmServers(arms, server_flags(options, max(counts)), options.layout) as servers,
        tqdm(total=sum(counts.values()) * len(arms) * options.repetitions, unit="request") as bar,
    ):
        requests = make_requests(servers.get(arms[0].name), prompts[: max(counts.values())], options)
        about: dict[str, dict[str, Any]] = {}
        for arm, concurrency, repetition in schedule(arms, options, servers.side_by_side):
            server = servers.get(arm.name)
            if arm.name not in about:
                about[arm.name] = describe(arm, server)
            bar.set_description(f"{arm.name}, {concurrency} users, repetition {repetition + 1}")
            cell = requests[: counts[concurrency]]
            if repetition == 0 or not servers.side_by_side:
                warm_up(server.base_url, cell, concurrency, options.long_warm_up)
            flush_cache(server.base_url)
            figures, results = measure(server.base_url, cell, concurrency, options.steady_seconds)
            bar.update(len(cell))
            for failed in [result for result in results if result.error is not None][:3]:
                tqdm.write(f"{arm.name}: request {failed.id} failed: {failed.error}")
            cells.append({"arm": arm.name, "concurrency": concurrency, "repetition": repetition, **figures})
            outputs[arm.name, concurrency, repetition] = results
    payload = {
        "settings": settings(options) | {"layout": "side-by-side" if servers.side_by_side else "one-at-a-time"},
        "arms": about,
        "cells": cells,
        **compare([arm.name for arm in arms], about, cells, outputs, same_answers(options)),
    }
    return payload, markdown(payload)


def same_answers(options: argparse.Namespace) -> bool:
    """Answers that were cut off at some time are not the same in two arms, and sampled ones need not be."""
    return options.temperature[0] == 0 and options.steady_seconds is None


def measure(
    base_url: str, requests: list[Request], users: int, steady_seconds: float | None
) -> tuple[dict[str, Any], list[Result]]:
    """Figures and results of one run: the list of requests, or as many as fit into a time."""
    if steady_seconds is None:
        run = run_load(base_url, requests, users)
        return summarise(run).as_json(), run.results
    steady = steady_load(base_url, requests, users, steady_seconds)
    wait_idle(base_url)
    figures = summarise(LoadRun(steady.results, steady.end - steady.begin)).as_json()
    return figures | {"output_tokens_per_second": steady.tokens_per_second}, steady.results


def schedule(arms: list[Arm], options: argparse.Namespace, side_by_side: bool) -> Iterator[tuple[Arm, int, int]]:
    """(arm, concurrency, repetition) so that what is compared runs as close in time as the layout allows."""
    rotate = [arms[i:] + arms[:i] for i in range(len(arms))]
    if side_by_side:
        for concurrency in options.concurrency:
            for repetition in range(options.repetitions):
                for arm in rotate[repetition % len(arms)]:
                    yield arm, concurrency, repetition
    else:
        for repetition in range(options.repetitions):
            for arm in rotate[repetition % len(arms)]:
                for concurrency in options.concurrency:
                    yield arm, concurrency, repetition


def accept_only(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Accept length per domain at each temperature, of one arm."""
    arm = parse_arm(options.arm[-1] if options.arm else "dspark")
    prompts = load_prompts(options.prompts, options.domains, options.limit, options.seed)
    concurrency = max(options.concurrency)
    reports = []
    with (
        ArmServers([arm], server_flags(options, concurrency), "side-by-side") as servers,
        tqdm(total=len(prompts) * len(options.temperature), unit="request") as bar,
    ):
        server = servers.get(arm.name)
        tokenizer = served_tokenizer(server)
        for temperature in options.temperature:
            bar.set_description(f"{arm.name}, T = {temperature:g}")
            report = measure_accept(
                server.base_url,
                prompts,
                tokenizer,
                temperature,
                options.max_new_tokens,
                concurrency,
                on_result=lambda _: bar.update(),
            )
            reports.append(report)
        about = {arm.name: describe(arm, server)}
    payload = {
        "settings": settings(options),
        "arms": about,
        "accept": [report.as_json() for report in reports],
        "verdict": "measured",
    }
    return payload, accept_table(reports)


def server_flags(options: argparse.Namespace, users: int) -> list[str]:
    """What every arm is served with."""
    return [
        "--max-running-requests", str(users), "--max-total-tokens", str(options.max_total_tokens),
        "--context-length", str(options.context_length), *shlex.split(options.serve_flags),
    ]  # fmt: skip


def make_requests(server: ServerProcess, prompts: list[Prompt], options: argparse.Namespace) -> list[Request]:
    """One request a prompt, tokenised with the tokenizer of the model that is served."""
    tokenizer = served_tokenizer(server)
    sampling = {
        "temperature": options.temperature[0],
        "max_new_tokens": options.max_new_tokens,
        "ignore_eos": options.ignore_eos,
    }
    return [Request(p.id, p.domain, apply_chat(tokenizer, p.prompt), sampling) for p in prompts]


def served_tokenizer(server: ServerProcess) -> Any:
    """The tokenizer of the model that is served."""
    return load_tokenizer(server_info(server.base_url)["tokenizer_path"])


def warm_up(base_url: str, requests: list[Request], concurrency: int, whole: bool) -> None:
    """First steps at this batch size belong to no measurement. `whole`: a run like those timed."""
    short = [Request(r.id, r.domain, r.input_ids, {**r.sampling, "max_new_tokens": 8}) for r in requests[:concurrency]]
    run_load(base_url, requests if whole else short, concurrency)
    wait_idle(base_url)


def describe(arm: Arm, server: ServerProcess) -> dict[str, Any]:
    """The arm's flags and what the server made of them."""
    info = server_info(server.base_url)
    keys = ("speculative_algorithm", "speculative_num_draft_tokens", "dtype", "device", "attention_backend", "version")
    return {
        "flags": shlex.join(arm.flags),
        "speculates": bool(info.get("speculative_algorithm")),
        "memory_gib": round(server.memory_bytes() / 2**30, 2),
        **{key: info.get(key) for key in keys},
    }


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options that shape the figures."""
    left_out = {"arm", "name", "results"}
    return json.loads(json.dumps({k: v for k, v in vars(options).items() if k not in left_out}, default=str))


if __name__ == "__main__":
    sys.exit(main())
