"""`calibrate`: run traffic, record confidences and what acceptance did, fit on one part, report on another, install."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sglang_dspark.calibrate.plot import reliability_diagram
from sglang_dspark.calibrate.recording import OWN_FLAGS, Recording, found, record
from sglang_dspark.calibrate.report import GATE_SAMPLES, ClassReport, as_json, gate, judge, table
from sglang_dspark.calibrate.samples import Samples, split
from sglang_dspark.calibrate.store import installed_path
from sglang_dspark.calibrate.traffic import Phase
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.prompts import Prompt, load_prompts
from sglang_dspark.evaluate.rounds import RoundLog
from sglang_dspark.identity import Identity
from sglang_dspark.schedule.calibration import Calibration

_DESCRIPTION = """Measure how often drafted tokens are really accepted, and calibrate the draft's confidences to it.

Starts a server with the flags given (any flag of serve), answers prompts at each temperature with every drafted token
verified, fits per temperature band on one half of the prompts and reports on the other, or on those of
--report-prompts. The calibration is installed where serve finds it. Exit status 1: a position failed the gate
(pooled ECE of 2 % or more on held-out data, or fewer than 20,000 samples)."""

# Of the rounds, so that each half has enough: whole prompts are dealt to the halves.
_SPLIT_MARGIN = 1.06


def main(argv: list[str]) -> int:
    """Calibrate; 0 if every position passes, 1 if one does not."""
    arguments, flags = _parser().parse_known_args(argv)
    for flag in OWN_FLAGS:
        if any(part == flag or part.startswith(flag + "=") for part in flags):
            raise ConfigError(f"{flag}: calibrate chooses it; leave it out")
    if min(arguments.temperatures) < 0 or arguments.samples < 1 or arguments.concurrency < 1:
        raise ConfigError("--temperatures must be 0 or more, --samples and --concurrency at least 1")
    if arguments.records is not None:
        if flags:
            raise ConfigError(f"{flags[0]}: --records reads what was recorded; no server is started")
        return _conclude(found(arguments.records), arguments, argv)
    if arguments.keep_records is not None:
        return _conclude(_recorded(arguments, flags, arguments.keep_records), arguments, argv)
    with tempfile.TemporaryDirectory(prefix="dspark-calibrate-") as folder:
        return _conclude(_recorded(arguments, flags, Path(folder)), arguments, argv)


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
    add("--fit-samples", type=int, help="With --report-prompts: labelled rounds to fit on. Default: --samples.")
    add("--max-new-tokens", type=int, default=256, help="Length of the answers. Default: 256.")
    add("--concurrency", type=int, default=32, help="Requests at a time. Default: 32.")
    add("--records", type=Path, help="Start no server: fit on what serve --dspark-record wrote here.")
    add(
        "--keep-records",
        type=Path,
        metavar="DIR",
        help="Keep the record files here. The same command again continues where it was stopped.",
    )
    add("--budget-minutes", type=float, help="Stop the traffic after so long, and report on what there is.")
    add("--output", type=Path, help="Also write the calibration (.json) and its picture (.png) here.")
    add("--name", help="Name of the target in the installed file's name. Default: that of its folder.")
    add("--no-install", action="store_true", help="Do not install it where serve looks.")
    return parser


def _recorded(arguments: argparse.Namespace, flags: Sequence[str], folder: Path) -> Recording:
    parts = {"fit": _prompts(arguments.prompts)}
    needed = {"fit": arguments.fit_samples or arguments.samples}
    if arguments.report_prompts is not None:
        parts["report"] = _prompts(arguments.report_prompts)
        needed["report"] = arguments.samples
    else:
        needed["fit"] = round(2 * _SPLIT_MARGIN * arguments.samples)
    settings = [(t, False) for t in dict.fromkeys(arguments.temperatures)]
    settings += [(t, True) for t, _ in settings if t > 0 and arguments.seeded]
    about = {
        "prompts": "shipped" if arguments.prompts is None else arguments.prompts.name,
        "report_prompts": None if arguments.report_prompts is None else arguments.report_prompts.name,
        "temperatures": sorted({t for t, _ in settings}),
        "seeded": arguments.seeded,
        "max_new_tokens": arguments.max_new_tokens,
        "serve_flags": [Path(flag).name if "/" in flag else flag for flag in flags],
    }
    return record(
        folder,
        flags,
        parts,
        [Phase(part, t, seeded, needed[part]) for part in parts for t, seeded in settings],
        about,
        max_new_tokens=arguments.max_new_tokens,
        concurrency=arguments.concurrency,
        seconds=None if arguments.budget_minutes is None else 60 * arguments.budget_minutes,
    )


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
            reliability_diagram(reports, path.with_suffix(".png"), f"Calibration of {arguments.name or recording.name}")
        print(f"wrote {path}")
    for failure in failures:
        print(f"FAILED {failure}")
    print(_verdict(reports, failures))
    return 1 if failures else 0


def _samples(recording: Recording, log: RoundLog) -> tuple[Samples, Samples]:
    """The rows to fit on and the rows to report on."""
    if recording.about["report_prompts"] is not None:
        return recording.samples(log, "fit"), recording.samples(log, "report")
    samples = recording.samples(log)
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
