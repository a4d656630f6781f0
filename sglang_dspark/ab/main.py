"""`ab`: the offline experiment and its reports; `ab report` makes the reports anew, `ab live` splits live traffic."""

from __future__ import annotations

import argparse
import json
import logging
import math
import shlex
import sys
from pathlib import Path
from typing import Any

from sglang_dspark.ab.catalogue import CATALOGUE, Chosen, choose
from sglang_dspark.ab.dataset import Dataset, load_dataset
from sglang_dspark.ab.traffic import Scenario, Shape, read_arrivals
from sglang_dspark.errors import ConfigError

logger = logging.getLogger(__name__)

QUICK_MINUTES, FULL_MINUTES = 20.0, 120.0
EXIT_INCONCLUSIVE = 2
_DESCRIPTION = """Serve the same requests in several ways and compare throughput per device at the speed users get.

python -m sglang_dspark ab --quick                     # the demo pair, 20 minutes
python -m sglang_dspark ab                             # the same with more repetitions, at most 2 hours
python -m sglang_dspark ab --arms plain dspark --model-path DIR --concurrency 1 8 64 256 --temperature 0 1
python -m sglang_dspark ab report FOLDER               # the pages anew, from cells that were measured before
python -m sglang_dspark ab live --config split.yaml    # a split of live traffic (docs/production.md)

Arms: """


def main(argv: list[str]) -> int:
    """Run the experiment or one of the sub-commands; 2 if nothing can be concluded."""
    if argv[:1] == ["live"]:
        from sglang_dspark.ab.live.main import main as live

        return live(argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if argv[:1] == ["report"]:
        return _report_again(argv[1:])
    return _measure(parse_options(argv), argv)


def parse_options(argv: list[str]) -> argparse.Namespace:
    """The command line of the experiment; unknown flags go to `serve` for every arm."""
    arms = "\n".join(f"  {name:<13} {entry.description}" for name, entry in CATALOGUE.items())
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dspark ab",
        description=f"{_DESCRIPTION}\n{arms}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--arms", nargs="+", default=[], metavar="ARM", help="names above, name='flags of serve', aa:NAME for A/A")
    add("--arms-file", type=Path, help="YAML with arms of your own")
    add("--draft", action="append", default=[], metavar="KIND=PATH", help="draft of an arm: mtp, eagle3, dflash, ...")
    add("--candidate", help="arm that is judged (default: dspark, else the last)")
    add("--baseline", help="arm it is judged against (default: mtp-best, mtp-1, else the first)")
    add("--dataset", default="shipped", help="shipped, FILE.jsonl, sharegpt:FILE, random:IN,OUT")
    add("--domains", nargs="+", help="of the dataset, these only")
    add("--concurrency", type=int, nargs="*", default=[1, 4, 16, 32], help="users of the closed loop")
    add("--poisson", type=float, nargs="+", default=[], metavar="RATE", help="also open loop, requests a second")
    add("--arrivals", type=Path, help="also open loop with recorded times: JSONL of seconds")
    add("--arrivals-speed", type=float, nargs="+", default=[1.0], help="recorded times are divided by these")
    add("--shared-prefix", type=int, metavar="TOKENS", help="also prompts that share this many tokens")
    add("--multi-turn", type=int, metavar="TURNS", help="also conversations of so many turns")
    add("--traffic-users", type=int, default=4, help="users of --shared-prefix and --multi-turn")
    add("--answers", type=int, help="prompts that each arm answers completely, once (default: 24, 12 with --quick)")
    add("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    add("--max-new-tokens", type=int, help="of an answer (default: 64, 32 with --quick)")
    add("--stop-at-eos", action="store_true", help="answers end where the model ends them; T > 0 is then uneven work")
    add("--slo", type=float, nargs="+", default=[], help="tok/s per user at which throughputs are compared")
    add("--devices", type=int, default=1, help="devices of one arm; throughput is divided by it")
    add("--quick", action="store_true", help=f"{QUICK_MINUTES:g} minutes")
    add("--minutes", type=float, help=f"time for everything (default {FULL_MINUTES:g})")
    add("--repetitions", type=int, help="default: as many as fit")
    add("--cell-seconds", type=float, help="for which users are kept busy (default: as fits)")
    add("--warm-seconds", type=float, default=4.0, help="for which each server is kept busy at each load before")
    add("--layout", choices=("auto", "side-by-side", "one-at-a-time"), default="auto")
    add("--fresh-server", action="store_true", help="a new server for every cell")
    add("--ready-seconds", type=float, default=600.0, help="limit for a server's start")
    add("--request-seconds", type=float, default=300.0, help="limit for an answer")
    add("--output", type=Path, default=Path("ab-results"), help="folder; an interrupted run in it goes on")
    add("--fresh", action="store_true", help="start anew even if the folder holds cells")
    add("--seed", type=int, default=0)
    options, flags = parser.parse_known_args(argv)
    options.serve_flags = flags
    _check(options, parser)
    return options


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for flag in ("concurrency", "poisson", "arrivals_speed", "slo"):
        if any(value <= 0 for value in getattr(options, flag)):
            parser.error(f"--{flag.replace('_', '-')}: values must be above 0")
    for flag in ("devices", "repetitions", "max_new_tokens", "shared_prefix", "traffic_users"):
        if getattr(options, flag) is not None and getattr(options, flag) < 1:
            parser.error(f"--{flag.replace('_', '-')} must be at least 1")
    for flag in ("cell_seconds", "warm_seconds"):
        if getattr(options, flag) is not None and getattr(options, flag) <= 0:
            parser.error(f"--{flag.replace('_', '-')} must be above 0")
    if options.multi_turn is not None and options.multi_turn < 2:
        parser.error("--multi-turn must be at least 2")
    if min(options.temperature) < 0:
        parser.error("--temperature must be 0 or more")
    for text in options.draft:
        if "=" not in text:
            parser.error(f"--draft {text}: give KIND=PATH")
    if options.minutes is None:
        options.minutes = QUICK_MINUTES if options.quick else FULL_MINUTES
    if options.answers is None:
        options.answers = 12 if options.quick else 24
    if options.max_new_tokens is None:
        options.max_new_tokens = 32 if options.quick else 64


def _measure(options: argparse.Namespace, argv: list[str]) -> int:
    from sglang_dspark.ab.experiment import Experiment, Settings
    from sglang_dspark.ab.store import Store
    from sglang_dspark.evaluate.provenance import now

    scenarios, shape = scenarios_of(options)
    dataset = load_dataset(options.dataset, seed=options.seed, domains=options.domains)
    chosen = choose(
        options.arms,
        file=options.arms_file,
        drafts=dict(text.split("=", 1) for text in options.draft),
        model_path=_model_path(options.serve_flags),
    )
    users = max(scenario.users for scenario in scenarios)
    if len(dataset.dialogues) < users:
        raise ConfigError(f"--dataset {options.dataset}: {len(dataset.dialogues)} prompts for {users} users; give more")
    flags = server_flags(options, users, dataset)
    cells = options.output / "cells.jsonl"
    if options.fresh:
        cells.unlink(missing_ok=True)
        (options.output / "bench_serving.jsonl").unlink(missing_ok=True)
    store = Store(cells, _fingerprint(options, chosen, scenarios, shape, flags))
    if "about" not in store.notes.get("header", {}):
        store.note("header", _header(options, argv, dataset, flags, now()))
    settings = Settings(
        chosen, scenarios, shape, dataset, flags, options.minutes * 60, options.repetitions,
        options.cell_seconds, options.layout, options.warm_seconds, options.fresh_server, options.ready_seconds,
        options.output,
    )  # fmt: skip
    try:
        Experiment(settings, store).run()
    except KeyboardInterrupt:
        logger.info("interrupted; the same command goes on from here")
        if not store.cells:
            return 130
    store.note("finished", now())
    return _write(options, store, chosen, scenarios)


def scenarios_of(options: argparse.Namespace) -> tuple[list[Scenario], Shape]:
    """Every load at every temperature.

    Raises:
        ConfigError: there is none.
    """
    arrivals = read_arrivals(options.arrivals) if options.arrivals is not None else ()
    found = []
    users = max([*options.concurrency, 1])
    for temperature in dict.fromkeys(options.temperature):
        found += [Scenario("closed", users, temperature) for users in sorted(set(options.concurrency))]
        found += [Scenario("poisson", rate, temperature) for rate in options.poisson]
        found += [Scenario("recorded", speed, temperature) for speed in options.arrivals_speed if arrivals]
        if options.shared_prefix is not None:
            found.append(Scenario("shared-prefix", options.traffic_users, temperature))
        if options.multi_turn is not None:
            found.append(Scenario("multi-turn", options.traffic_users, temperature))
        if options.answers and found:
            found.append(Scenario("answers", min(users, 16), temperature))
    if not found:
        raise ConfigError("--concurrency: no load is left; give users, or --poisson, --arrivals, --multi-turn")
    shape = Shape(
        max_new_tokens=options.max_new_tokens,
        ignore_eos=not options.stop_at_eos,
        shared_prefix=options.shared_prefix or 256,
        turns=options.multi_turn or 3,
        answers=options.answers,
        request_seconds=options.request_seconds,
        arrivals=arrivals,
        seed=options.seed,
    )
    return found, shape


def server_flags(options: argparse.Namespace, users: int, dataset: Dataset) -> list[str]:
    """Flags of every arm: what the user gave, and on the CPU the same number of KV slots for all.

    On a GPU the engine divides one share of the memory (`--mem-fraction-static`) into weights, draft and both caches,
    which is equal memory; a number of slots would give arms with a draft more of it.
    """
    flags = list(options.serve_flags)
    if "--max-running-requests" not in flags:
        flags += ["--max-running-requests", str(max(users, 8 if options.poisson or options.arrivals else 1))]
    if "--context-length" not in flags and _model_path(flags) is None:
        flags += ["--context-length", "2048"]
    if "--max-total-tokens" not in flags and _model_path(flags) is None:
        flags += ["--max-total-tokens", str(max(8192, 2 ** math.ceil(math.log2(users * 384))))]
    return flags


def _model_path(flags: list[str]) -> str | None:
    for name in ("--model-path", "--model"):
        if name in flags[:-1]:
            return flags[flags.index(name) + 1]
    return None


def _fingerprint(
    options: argparse.Namespace, chosen: list[Chosen], scenarios: list[Scenario], shape: Shape, flags: list[str]
) -> dict[str, Any]:
    """Everything whose change makes old cells another measurement."""
    return {
        "arms": {one.name: list(one.arm.flags) for one in chosen if one.arm is not None},
        "scenarios": [scenario.key for scenario in scenarios],
        "shape": vars(shape),
        "dataset": options.dataset,
        "domains": options.domains,
        "seed": options.seed,
        "serve_flags": flags,
        "fresh_server": options.fresh_server,
    }


def _header(
    options: argparse.Namespace, argv: list[str], dataset: Dataset, flags: list[str], now: str
) -> dict[str, Any]:
    from sglang_dspark.evaluate.provenance import machine

    left_out = {"output", "fresh", "arms_file"}
    return {
        "about": {
            "command": shlex.join(["python", "-m", "sglang_dspark", "ab", *argv]),
            "started": now,
            "machine": machine(),
            "dataset": dataset.name,
            "fit_for_acceptance": dataset.fit_for_acceptance,
            "serve_flags": shlex.join(flags),
            "settings": json.loads(
                json.dumps({k: v for k, v in vars(options).items() if k not in left_out}, default=str)
            ),
        },
        "question": [options.candidate, options.baseline, options.slo, options.devices],
    }


def _write(options: argparse.Namespace, store: Any, chosen: list[Chosen], scenarios: list[Scenario]) -> int:
    from sglang_dspark.ab.report import write_reports
    from sglang_dspark.ab.results import collect, question_for

    header = store.notes["header"]
    candidate, baseline, slo, devices = header["question"]
    runs = [one.name for one in chosen if one.arm is not None]
    question = question_for(
        runs, options.candidate or candidate, options.baseline or baseline, options.slo or slo, devices
    )
    about = header["about"] | {"finished": store.notes.get("finished")}
    found = collect(store, chosen, scenarios, question, about)
    paths = write_reports(found, options.output)
    print(f"\n{found['verdict']['headline']}")
    for sentence in (*found["verdict"]["sentences"], *found["verdict"]["warnings"]):
        print(f"- {sentence}")
    print(f"\nwritten: {', '.join(str(path) for path in paths)}")
    return 0 if found["verdict"]["conclusive"] else EXIT_INCONCLUSIVE


def _report_again(argv: list[str]) -> int:
    """`ab report FOLDER [--candidate A] [--baseline B] [--slo ...]`: no server is started."""
    from sglang_dspark.ab.store import Store

    parser = argparse.ArgumentParser(prog="python -m sglang_dspark ab report", description=_report_again.__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--candidate")
    parser.add_argument("--baseline")
    parser.add_argument("--slo", type=float, nargs="+", default=[])
    chosen = parser.parse_args(argv)
    cells = chosen.output / "cells.jsonl"
    if not cells.is_file():
        raise ConfigError(f"{cells}: no such file; measure first with: ab --output {chosen.output}")
    header = json.loads(cells.open(encoding="utf-8").readline())
    store = Store(cells, header["settings"])
    command = shlex.split(store.notes["header"]["about"]["command"])[4:]
    options = parse_options(command)
    for name in ("output", "candidate", "baseline", "slo"):
        if value := getattr(chosen, name):
            setattr(options, name, value)
    arms = choose(
        options.arms, file=options.arms_file, drafts=dict(text.split("=", 1) for text in options.draft),
        model_path=_model_path(options.serve_flags),
    )  # fmt: skip
    return _write(options, store, arms, scenarios_of(options)[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
