"""`profile`: serve, sweep requests, verified tokens and context, fit what a round costs, draw it, install it."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_dspark.errors import ConfigError, DSparkError
from sglang_dspark.evaluate.endpoints import load, server_info
from sglang_dspark.evaluate.load import Request, run_load
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.identity import processor
from sglang_dspark.profile.plot import draw
from sglang_dspark.profile.store import file_name, installed_dir
from sglang_dspark.profile.sweep import ANSWER_TOKENS, CONTEXTS, REQUESTS, Cell, Sweep, plan
from sglang_dspark.schedule.cost import GraphSizes
from sglang_dspark.schedule.cost_fit import Sample, fit_surface, group
from sglang_dspark.schedule.profile import Profile
from sglang_dspark.schedule.sglang_tables import additive_table, steps_table

_DESCRIPTION = """Measure what a decoding round costs on this machine, and install the result where serve finds it.

Starts a server with the flags given (any flag of serve: use those that will serve), drives it with 1 to its limit of
requests at several context lengths while every number of verified tokens is asked for in turn, and stops it. Interrupt
at any time; the same command goes on where it stopped. Exit status 1: the profile is not to be trusted (median error
at points left out above 5 %), and serve will not use it."""

# profile decides these itself.
_OWN_FLAGS = ("--dspark-policy", "--dspark-record", "--dspark-record-limit-mib", "--dspark-verify-length")
_INTERRUPTED = 130
# Left for the fit, the picture and stopping the server.
_END_SECONDS = 15.0
_BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"


def main(argv: list[str]) -> int:
    """Profile; 0 if the result may be scheduled by, 1 if not, 130 when interrupted."""
    arguments, flags = _parser().parse_known_args(argv)
    if arguments.convert is not None:
        return _export(arguments.convert, arguments)
    for flag in _OWN_FLAGS:
        if any(part == flag or part.startswith(flag + "=") for part in flags):
            raise ConfigError(f"{flag}: profile chooses it; leave it out")
    if arguments.draft is not None:
        flags += ["--dspark-draft", arguments.draft]
    if arguments.budget_minutes is not None and arguments.budget_minutes <= 0:
        raise ConfigError(f"--budget-minutes {arguments.budget_minutes}: must be more than 0")
    if min(arguments.requests) < 1 or min(arguments.contexts) < 1 or arguments.temperature < 0:
        raise ConfigError("--requests and --contexts must be at least 1, --temperature at least 0")
    work = _work_folder(arguments, flags)
    try:
        profile, model = _measure(arguments, flags, work, argv)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was measured is in {work}; the same command goes on from there", file=sys.stderr)
        return _INTERRUPTED
    assert profile.identity is not None, "Sweep.bind sets it"
    name = file_name(model, profile.identity)
    picture = work / "picture.png"
    draw(profile, picture)
    for path in ([arguments.output] if arguments.output else []) + [installed_dir() / name]:
        profile.save(path)
        shutil.copyfile(picture, path.with_suffix(".png"))
        print(f"wrote {path} and {path.with_suffix('.png').name}")
    shutil.rmtree(work)
    print(_summary(profile))
    return 0 if profile.trusted else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dspark profile",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--draft", metavar="PATH", help="Draft checkpoint (same as serve's --dspark-draft). Default: as serve chooses.")
    add("--budget-minutes", type=float, help="Stop measuring after this long and fit what there is. Default: no limit.")
    add("--output", type=Path, help="Also write the profile (.json) and its picture (.png) here.")
    add("--requests", type=int, nargs="+", default=list(REQUESTS), help="Loads, besides the server's own limit.")
    add("--contexts", type=int, nargs="+", default=list(CONTEXTS), help="Prompt lengths. Default: %(default)s.")
    add("--temperature", type=float, default=0.0, help="Of the requests; accepting costs more above 0. Default: 0.")
    add("--convert", type=Path, metavar="PROFILE", help="Start nothing: print this profile as a table of SGLang's.")
    add("--table", choices=("additive", "steps"), default="additive", help="Which table --convert prints.")
    add("--context", type=int, default=512, help="Committed tokens a request that --convert assumes. Default: 512.")
    return parser


def _export(path: Path, arguments: argparse.Namespace) -> int:
    make = {"additive": additive_table, "steps": steps_table}[arguments.table]
    print(json.dumps(make(Profile.load(path), arguments.context)))
    return 0


def _work_folder(arguments: argparse.Namespace, flags: Sequence[str]) -> Path:
    """Beside the output; without one, a folder for these flags where profiles are installed."""
    if arguments.output is not None:
        work: Path = arguments.output.with_suffix(".work")
    else:
        key = json.dumps([list(flags), arguments.requests, arguments.contexts, arguments.temperature])
        work = installed_dir() / f"{hashlib.sha256(key.encode()).hexdigest()[:8]}.work"
    work.mkdir(parents=True, exist_ok=True)
    return work


def _measure(
    arguments: argparse.Namespace, flags: Sequence[str], work: Path, argv: Sequence[str]
) -> tuple[Profile, str]:
    """Serve, sweep, fit: the profile, and the served model's name."""
    begin = time.monotonic()
    deadline = begin + 60 * (arguments.budget_minutes or float("inf"))
    # Earlier records are in the cells already; a folder holds one server's.
    records = work / f"records-{len(list(work.glob('records-*')))}"
    own = ["--dspark-policy", "sweep", "--dspark-record", str(records)]
    print(f"starting: serve {shlex.join([*flags, *own])}", file=sys.stderr, flush=True)
    with ServerProcess([*flags, *own], name="profile") as server:
        info = server_info(server.base_url)
        limits = _limits(server.base_url, info)
        cells = plan(*limits, requests=arguments.requests, contexts=arguments.contexts)
        driver = _Driver(server.base_url, _vocabulary(str(info["model_path"])), arguments.temperature)
        sweep = Sweep(work, records, driver)
        driver(Cell(2, min(arguments.contexts), -1))
        sweep.bind()
        samples, measured = run_cells(sweep, cells, deadline)
    model = str(info["model_path"])
    about = {
        "model": Path(model).name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        # Without paths: the file may be shipped.
        "command": "python -m sglang_dspark profile " + shlex.join(Path(p).name if "/" in p else p for p in argv),
        "processor": processor(),
        "temperature": arguments.temperature,
        "rounds": len(samples),
        "loads": f"{measured} of {len(cells)}",
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }
    return fit(samples, sweep, _graphs(info, sweep.gamma), about), model


def run_cells(sweep: Sweep, cells: Sequence[Cell], deadline: float) -> tuple[list[Sample], int]:
    """All measured rounds, and how many of the cells they are of: those that fit before `deadline` (monotonic)."""
    from tqdm import tqdm

    known = sweep.done(cells)
    samples = [sample for cell in known for sample in sweep.run(cell)]
    open_cells = [cell for cell in cells if cell not in set(known)]
    bar = tqdm(total=sum(c.weight for c in cells), initial=sum(c.weight for c in known), bar_format=_BAR)
    weight, seconds, measured = 0.0, 0.0, len(known)
    with bar:
        for cell in open_cells:
            expected = cell.weight * seconds / weight if weight else 0.0
            if time.monotonic() + expected + _END_SECONDS > deadline:
                continue
            bar.set_description(f"{cell.requests} requests, context {cell.context}, pass {cell.visit + 1}")
            start = time.monotonic()
            samples += sweep.run(cell)
            weight, seconds, measured = weight + cell.weight, seconds + time.monotonic() - start, measured + 1
            bar.update(cell.weight)
    if measured < len(cells):
        print(f"measured {measured} of {len(cells)} loads within the budget", file=sys.stderr)
    return samples, measured


def fit(samples: Sequence[Sample], sweep: Sweep, graphs: GraphSizes, about: dict[str, Any]) -> Profile:
    """The profile that the samples amount to."""
    drafted, undrafted = group(samples, drafted=True), group(samples, drafted=False)
    return Profile.from_fits(
        fit_surface(drafted, graphs),
        fit_surface(undrafted, graphs) if len(undrafted) >= 2 else None,
        gamma=sweep.gamma,
        identity=sweep.identity,
        graphs=graphs,
        about=about,
    )


class _Driver:
    """Puts a cell's load on the server: so many requests at once, all of one length, of random tokens.

    Request i has the same tokens in every cell, as many as the cell wants. The engine's prefix cache then spares
    most of the prefill; decoding costs the same.
    """

    def __init__(self, base_url: str, vocabulary: int, temperature: float) -> None:
        self._base_url, self._vocabulary, self._temperature = base_url, vocabulary, temperature

    def __call__(self, cell: Cell) -> None:
        """Run one cell once.

        Raises:
            DSparkError: a request failed.
        """
        sampling = {"max_new_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": self._temperature}
        requests = [
            Request(
                id=str(i), domain="random", input_ids=self._prompt(i, cell.context), sampling=sampling, stream=False
            )
            for i in range(cell.requests)
        ]
        run = run_load(self._base_url, requests, cell.requests)
        if run.errors:
            raise DSparkError(f"{cell.requests} requests at context {cell.context}: {run.errors[0].error}")

    def _prompt(self, index: int, length: int) -> list[int]:
        draws = random.Random(index)
        return [draws.randrange(self._vocabulary) for _ in range(length)]


def _limits(base_url: str, info: dict[str, Any]) -> tuple[int, int, int]:
    """Most running requests, longest context, KV slots of a server."""
    states = info.get("internal_states") or [{}]
    most = states[0].get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
    pool = load(base_url).total_tokens
    context = (
        info.get("context_length") or _model_config(str(info["model_path"])).get("max_position_embeddings") or pool
    )
    return int(most or REQUESTS[-1]), int(context), pool


def _graphs(info: dict[str, Any], gamma: int) -> GraphSizes:
    """Sizes of the engine's captured graphs: requests, and verified tokens in whole blocks of them."""
    sizes = sorted(info.get("cuda_graph_bs") or [])
    if info.get("device") == "cpu" or info.get("disable_cuda_graph") or not sizes:
        return GraphSizes()
    return GraphSizes(tuple(sizes), tuple(size * (1 + gamma) for size in sizes))


def _vocabulary(model_path: str) -> int:
    return int(_model_config(model_path)["vocab_size"])


def _model_config(model_path: str) -> dict[str, Any]:
    folder = Path(model_path)
    if folder.is_dir():
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    else:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model_path).to_dict()
    return {**config, **(config.get("text_config") or {})}


def _summary(profile: Profile) -> str:
    error = "unknown" if profile.held_out_error is None else f"{profile.held_out_error:.1%}"
    kinds = f"{len(profile.points)} kinds of round, {profile.about['rounds']} rounds"
    verdict = "trusted" if profile.trusted else f"NOT to be used: {profile.trouble}"
    return f"{kinds}; median held-out error {error}; {verdict}"
