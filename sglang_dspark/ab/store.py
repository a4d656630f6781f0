"""What an experiment has measured so far, one line a cell, so that an interrupted one goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.errors import ConfigError
from sglang_dspark.evaluate.load import LoadRun, Result

FORMAT, VERSION = "dspark-ab-cells", 1
_META = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "spec_verify_ct", "spec_num_proposed_drafts",
    "spec_num_correct_drafts", "spec_cap_length",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One arm, one scenario, one repetition.

    Attributes:
        arm, scenario, repetition: which; the scenario by its key.
        started: Unix seconds.
        figures: of `RunSummary`.
        answers: of every request: id, domain, output ids, finish reason, error, and what the engine said of it.
    """

    arm: str
    scenario: str
    repetition: int
    started: float
    figures: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]]

    @property
    def place(self) -> tuple[str, str, int]:
        return self.arm, self.scenario, self.repetition

    def results(self) -> list[Result]:
        """The answers as results, without their times."""
        return [
            Result(
                a["id"],
                a["domain"],
                0.0,
                list(a["ids"]),
                finish_reason=a["finish"],
                meta=dict(a["meta"]),
                error=a["error"],
            )
            for a in self.answers
        ]


def answers_of(run: LoadRun) -> list[dict[str, Any]]:
    """What a cell keeps of its answers."""
    return [
        {
            "id": result.id,
            "domain": result.domain,
            "ids": result.output_ids,
            "finish": result.finish_reason,
            "error": result.error,
            "meta": {key: result.meta[key] for key in _META if key in result.meta},
        }
        for result in run.results
    ]


class Store:
    """The file of an experiment: a header with everything that shapes the figures, then cells as they are measured.

    Args:
        path: JSONL; read if it is there.
        settings: plain values. Cells are reused only if these are the same.

    Raises:
        ConfigError: the file belongs to an experiment with other settings; the first that differs is named.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.cells: list[Cell] = []
        self.notes: dict[str, Any] = {}
        self._settings = json.loads(json.dumps(settings))
        if path.is_file() and path.stat().st_size:
            self._read()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"format": FORMAT, "version": VERSION, "settings": self._settings}, "w")

    @property
    def done(self) -> set[tuple[str, str, int]]:
        return {cell.place for cell in self.cells}

    def add(self, cell: Cell) -> None:
        """Keep a cell, on disk before anything else happens."""
        self._append(asdict(cell))
        self.cells.append(cell)

    def note(self, key: str, value: Any) -> None:
        """Keep something that was decided or found while running, such as the plan."""
        self.notes[key] = value
        self._append({"note": key, "value": value})

    def _append(self, record: Mapping[str, Any], mode: str = "a") -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        lines = text.split("\n")
        # What an interrupt left of the last line is measured again; cut off, so that the next line stands alone.
        if lines[-1]:
            self.path.write_text(text[: len(text) - len(lines[-1])], encoding="utf-8")
        header = json.loads(lines[0])
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise ConfigError(f"{self.path}: not the cells of an experiment, version {VERSION}; give another --output")
        theirs = header["settings"]
        for key in {*theirs, *self._settings}:
            if theirs.get(key) != self._settings.get(key):
                raise ConfigError(
                    f"{self.path}: measured with {key} = {theirs.get(key)!r}, not {self._settings.get(key)!r}; "
                    "give another --output, or --fresh to start anew"
                )
        for line in lines[1:-1]:
            record = json.loads(line)
            if "note" in record:
                self.notes[record["note"]] = record["value"]
            else:
                self.cells.append(Cell(**record))
