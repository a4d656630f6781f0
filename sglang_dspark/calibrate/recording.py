"""Record what acceptance does under known traffic: one server, all phases, resumable."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.calibrate.samples import Samples, samples_from_rows
from sglang_dspark.calibrate.traffic import Origin, Phase, Traffic, drive
from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.endpoints import server_info
from sglang_dspark.evaluate.prompts import Prompt, load_tokenizer
from sglang_dspark.evaluate.rounds import RoundLog
from sglang_dspark.evaluate.server import ServerProcess
from sglang_dspark.schedule.calibration import class_index

# serve's flags that calibrate decides itself.
OWN_FLAGS = ("--dspark-policy", "--dspark-record", "--dspark-record-limit-mib", "--dspark-verify-length")
_LIMIT_MIB = "4096"
_STATE = "requests.json"


@dataclass(frozen=True)
class Recording:
    """Record files and where their requests came from.

    Attributes:
        folder: of the record files.
        origins: by request id; None: somebody's live traffic.
        name: of the target.
        about: how it was made, for the report.
        issued: requests sent so far in each phase, by its title.
    """

    folder: Path
    origins: dict[str, Origin] | None
    name: str
    about: dict[str, Any]
    issued: dict[str, int] = dataclasses.field(default_factory=dict)

    def save(self) -> None:
        assert self.origins is not None
        state = dataclasses.asdict(self) | {
            "folder": None,
            "origins": {rid: dataclasses.astuple(origin) for rid, origin in self.origins.items()},
        }
        partial = self.folder / (_STATE + ".partial")
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(self.folder / _STATE)

    def samples(self, log: RoundLog, part: str | None = None) -> Samples:
        """The labelled rows, of one part of the traffic or of all of it.

        Raises:
            ConfigError: the records hold no rows at all.
        """
        rows = [one.rows for one in log if one.rows is not None]
        if not rows:
            raise ConfigError(f"{self.folder}: no round has its rows; record with serve --dspark-record")
        if self.origins is None:
            return samples_from_rows(rows, log.gamma)
        chosen = {r: (o.domain, o.group) for r, o in self.origins.items() if part in (None, o.part)}
        return samples_from_rows(rows, log.gamma, chosen)


def found(folder: Path) -> Recording:
    """What was recorded in `folder`: by `record`, or by serving somebody."""
    path = folder / _STATE
    if not path.is_file():
        return Recording(folder, None, "records", {"prompts": "recorded traffic", "report_prompts": None})
    state = json.loads(path.read_text(encoding="utf-8"))
    origins = {rid: Origin(*fields) for rid, fields in state["origins"].items()}
    return Recording(folder, origins, state["name"], state["about"], state["issued"])


def record(
    folder: Path,
    flags: Sequence[str],
    parts: Mapping[str, Sequence[Prompt]],
    phases: Sequence[Phase],
    about: dict[str, Any],
    *,
    max_new_tokens: int,
    concurrency: int,
    seconds: float | None = None,
) -> Recording:
    """Serve with `flags` and send the traffic of every phase; the records lie in `folder` afterwards.

    A folder that holds a recording made the same way is continued: its rows count, its requests are not sent again.

    Args:
        parts: prompts of each phase's `part`.
        about: how it is made; must be equal to continue.
        seconds: end the traffic after this long, even if rounds are missing.

    Raises:
        ConfigError: the folder holds something else.
    """
    from tqdm import tqdm

    before = _to_continue(folder, about)
    own = ["--dspark-policy", "fixed", "--dspark-record", str(folder), "--dspark-record-limit-mib", _LIMIT_MIB]
    print(f"starting: serve {shlex.join([*flags, *own])}", file=sys.stderr, flush=True)
    with ServerProcess([*flags, *own], name="calibrate") as server:
        info = server_info(server.base_url)
        origins = {} if before is None else dict(before.origins or {})
        recording = Recording(folder, origins, Path(str(info["model_path"])).name, about)
        recording.issued.update({} if before is None else before.issued)
        traffic = Traffic(load_tokenizer(info["tokenizer_path"]), max_new_tokens, origins)
        deadline = None if seconds is None else time.monotonic() + seconds
        done = [0 if before is None else _rounds_of(before, phase) for phase in phases]
        with tqdm(total=sum(phase.samples for phase in phases), unit="round", smoothing=0.1) as bar:
            for phase, have in zip(phases, done, strict=True):
                bar.set_description(phase.title)
                start, have = bar.n, min(have, phase.samples)

                def show(rounds: int, goal: int = start + phase.samples) -> None:
                    bar.update(min(rounds, goal - bar.n))  # what comes beyond it counts for no other phase

                show(have)
                if deadline is not None and time.monotonic() >= deadline:
                    continue
                stream = traffic.requests(parts[phase.part], phase, recording.issued)
                try:
                    drive(server.base_url, stream, phase, concurrency, show, have=have, deadline=deadline)
                finally:
                    recording.save()
    return recording


def _to_continue(folder: Path, about: dict[str, Any]) -> Recording | None:
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        return None
    before = found(folder)
    if before.origins is None or before.about != about:
        raise ConfigError(
            f"{folder}: holds records that were made otherwise; give an empty folder, or fit on them with --records"
        )
    return before


def _rounds_of(recording: Recording, phase: Phase) -> int:
    """Rounds with a label at every position that a recording holds for a phase already."""
    log = RoundLog.open(recording.folder)
    samples = recording.samples(log, phase.part)
    wanted = class_index([phase.temperature], [phase.seeded])[0]
    return int(((samples.kind == wanted) & samples.has_label(samples.gamma)).sum())
