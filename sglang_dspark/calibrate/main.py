"""`calibrate`: run traffic, record confidences and what acceptance did, fit on one part, report on another, install."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_dspark.calibrate.plot import reliability_diagram
from sglang_dspark.calibrate.report import GATE_SAMPLES, ClassReport, as_json, gate, judge, table
from sglang_dspark.calibrate.samples import Samples, samples_from_rows, split
from sglang_dspark.calibrate.store import installed_path
from sglang_dspark.calibrate.traffic import Origin, Phase, Traffic, drive
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.endpoints import server_info
from sglang_dspark.evaluate.prompts import Prompt, load_prompts, load_tokenizer
from sglang_dspark.evaluate.rounds import RoundLog
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.identity import Identity
from sglang_dspark.schedule.calibration import Calibration

_DESCRIPTION = """Measure how often drafted tokens are really accepted, and calibrate the draft's confidences to it.

Starts a server with the flags given (any flag of serve), answers prompts at each temperature with every drafted token
verified, fits per temperature band on one half of the prompts and reports on the other, or on those of
--report-prompts. The calibration is installed where serve finds it. Exit status 1: a position failed the gate
(pooled ECE of 2 % or more on held-out data, or fewer than 20,000 samples)."""

# Of the rounds, so that each half has enough: whole prompts are dealt to the halves.
_SPLIT_MARGIN = 1.06
# calibrate decides these itself.
_OWN_FLAGS = ("--dspark-policy", "--dspark-record", "--dspark-record-limit-mib", "--dspark-verify-length")
_RECORD_LIMIT_MIB = "4096"
_ORIGINS = "requests.json"


@dataclass(frozen=True)
class Recording:
    """Record files, and where their requests came from; None: somebody's live traffic."""

    folder: Path
    origins: dict[str, Origin] | None
    name: str
    about: dict[str, Any]


def main(argv: list[str]) -> int:
    """Calibrate; 0 if every position passes, 1 if one does not."""
    arguments, flags = _parser().parse_known_args(argv)
    for flag in _OWN_FLAGS:
        if any(part == flag or part.startswith(flag + "=") for part in flags):
            raise ConfigError(f"{flag}: calibrate chooses it; leave it out")
    if min(arguments.temperatures) < 0 or arguments.samples < 1 or arguments.concurrency < 1:
        raise ConfigError("--temperatures must be 0 or more, --samples and --concurrency at least 1")
    if arguments.records is not None:
        if flags:
            raise ConfigError(f"{flags[0]}: --records reads what was recorded; no server is started")
        return _conclude(_found(arguments.records), arguments, argv)
    if arguments.keep_records is not None:
        arguments.keep_records.mkdir(parents=True, exist_ok=True)
        if any(arguments.keep_records.iterdir()):
            raise ConfigError(f"--keep-records {arguments.keep_records}: must be empty")
        return _conclude(_record(arguments, flags, arguments.keep_records), arguments, argv)
    with tempfile.TemporaryDirectory(prefix="dspark-calibrate-") as folder:
        return _conclude(_record(arguments, flags, Path(folder)), arguments, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dspark calibrate",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--prompts", type=Path, help="JSONL with id, domain and prompt to fit on. Default: the package's own.")
    add("--report-prompts", type=Path, help="Held-out prompts to report on; all of --prompts are then fitted on.")
    add("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="Default: 0 1.")
    add("--seeded", action="store_true", help="Also calibrate sampled requests that carry a seed (coupled acceptance).")
    add(
        "--samples",
        type=int,
        default=GATE_SAMPLES,
        help=f"Labelled rounds per temperature in the reported part, and as many to fit on. Default: {GATE_SAMPLES}.",
    )
    add("--max-new-tokens", type=int, default=256, help="Length of the answers. Default: 256.")
    add("--concurrency", type=int, default=32, help="Requests at a time. Default: 32.")
    add("--records", type=Path, help="Start no server: fit on what serve --dspark-record wrote here.")
    add("--keep-records", type=Path, metavar="DIR", help="Keep the record files in this empty folder.")
    add("--output", type=Path, help="Also write the calibration (.json) and its picture (.png) here.")
    add("--name", help="Name of the target in the installed file's name. Default: that of its folder.")
    add("--no-install", action="store_true", help="Do not install it where serve looks.")
    return parser


def _record(arguments: argparse.Namespace, flags: Sequence[str], folder: Path) -> Recording:
    """Run all phases against one server; its records lie in `folder` afterwards."""
    from tqdm import tqdm

    parts = {"fit": _prompts(arguments.prompts)}
    if arguments.report_prompts is not None:
        parts["report"] = _prompts(arguments.report_prompts)
    needed = arguments.samples if len(parts) == 2 else round(2 * _SPLIT_MARGIN * arguments.samples)
    settings = [(t, False) for t in dict.fromkeys(arguments.temperatures)]
    settings += [(t, True) for t, _ in settings if t > 0 and arguments.seeded]
    phases = [Phase(part, t, seeded, needed) for part in parts for t, seeded in settings]
    own = ["--dspark-policy", "fixed", "--dspark-record", str(folder), "--dspark-record-limit-mib", _RECORD_LIMIT_MIB]
    print(f"starting: serve {shlex.join([*flags, *own])}", file=sys.stderr, flush=True)
    with ServerProcess([*flags, *own], name="calibrate") as server:
        info = server_info(server.base_url)
        traffic = Traffic(load_tokenizer(info["tokenizer_path"]), arguments.max_new_tokens)
        with tqdm(total=needed * len(phases), unit="round", smoothing=0.1) as bar:
            for number, phase in enumerate(phases, start=1):
                bar.set_description(phase.title)

                def show(rounds: int, goal: int = number * needed) -> None:
                    bar.update(min(rounds, goal - bar.n))  # what comes beyond it counts for no other phase

                drive(server.base_url, traffic.requests(parts[phase.part], phase), phase, arguments.concurrency, show)
    (folder / _ORIGINS).write_text(
        json.dumps({rid: dataclasses.astuple(origin) for rid, origin in traffic.origins.items()}), encoding="utf-8"
    )
    about = {
        "prompts": "shipped" if arguments.prompts is None else arguments.prompts.name,
        "report_prompts": None if arguments.report_prompts is None else arguments.report_prompts.name,
        "temperatures": [t for t, _ in settings],
        "max_new_tokens": arguments.max_new_tokens,
        "concurrency": arguments.concurrency,
    }
    return Recording(folder, traffic.origins, Path(str(info["model_path"])).name, about)


def _found(folder: Path) -> Recording:
    """Records that are there already: of a run with --keep-records, or of live traffic."""
    origins = None
    if (folder / _ORIGINS).is_file():
        stored = json.loads((folder / _ORIGINS).read_text(encoding="utf-8"))
        origins = {rid: Origin(*fields) for rid, fields in stored.items()}
    return Recording(folder, origins, "records", {"prompts": "recorded traffic", "report_prompts": None})


def _conclude(recording: Recording, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    """Fit, report, write, install."""
    log = RoundLog.open(recording.folder)
    targets = _targets(recording, log.identity, arguments)
    fitting, held_out = _samples(recording, log)
    print(f"fitting on {len(fitting)} rounds, reporting on {len(held_out)}", file=sys.stderr, flush=True)
    reports = judge(fitting, held_out)
    failures = gate(reports)
    about = {**recording.about, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    calibration = Calibration(
        log.gamma,
        tuple(report.parameters for report in reports),
        {} if log.identity is None else log.identity.as_dict(),
        not failures,
        about | as_json(reports, failures),
        # Without paths: the file may be shipped.
        "python -m sglang_dspark calibrate " + shlex.join(Path(part).name if "/" in part else part for part in argv),
    )
    print(table(reports))
    for path in targets:
        calibration.save(path)
        if reports:
            reliability_diagram(reports, path.with_suffix(".png"))
        print(f"wrote {path}")
    for failure in failures:
        print(f"FAILED {failure}")
    print(_verdict(reports, failures))
    return 1 if failures else 0


def _samples(recording: Recording, log: RoundLog) -> tuple[Samples, Samples]:
    """The rows to fit on and the rows to report on."""
    rows = [one.rows for one in log if one.rows is not None]
    if not rows:
        raise ConfigError(f"{recording.folder}: no round has its rows; record with serve --dspark-record")
    if recording.origins is None:
        samples = samples_from_rows(rows, log.gamma)
    else:
        parts = {
            part: samples_from_rows(
                rows, log.gamma, {r: (o.domain, o.group) for r, o in recording.origins.items() if o.part == part}
            )
            for part in dict.fromkeys(origin.part for origin in recording.origins.values())
        }
        if "report" in parts:
            return parts["fit"], parts["report"]
        samples = parts["fit"]
    chosen = split(samples)
    return samples.select(chosen), samples.select(~chosen)


def _targets(recording: Recording, identity: Identity | None, arguments: argparse.Namespace) -> list[Path]:
    targets = [] if arguments.output is None else [arguments.output]
    if not arguments.no_install:
        if identity is None:
            raise ConfigError(
                f"{recording.folder}: these records do not say what they were made on, so serve could not find the "
                "calibration; use --no-install with --output"
            )
        targets.append(installed_path(arguments.name or recording.name, identity))
    return targets


def _verdict(reports: list[ClassReport], failures: list[str]) -> str:
    if failures:
        return "The calibration did not pass; serve refuses it unless told otherwise."
    worst = max((cell for report in reports for cell in report.pooled), key=lambda cell: cell.after.ece.value)
    return (
        f"passed: the largest ECE on held-out data is {worst.after.ece.value:.2%} ({worst.kind}, position "
        f"{worst.position})"
    )


def _prompts(path: Path | None) -> list[Prompt]:
    """Domains in turn, in an order of their own, so that every stretch of the traffic has all of them."""
    return load_prompts(path, limit=1_000_000, seed=0)
