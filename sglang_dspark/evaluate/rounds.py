"""Read the round records that `engine/recorder.py` writes: one JSON line a decoding round, one file a rank."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.errors import DSparkError
from sglang_dspark.identity import Identity

FORMAT = "dspark-rounds"
VERSION = 1
_NAME = re.compile(r"rounds-tp(\d+)(?:-dp\d+)?-(\d+)-(\d+)\.jsonl$")


class RecordError(DSparkError, ValueError):
    """Records that cannot be read; the message names file and line."""


@dataclass(frozen=True)
class Rows:
    """What happened to each of R requests in a round.

    Attributes:
        rid: `[R]` engine request ids.
        temperature: `[R]`, 0 for greedy.
        coupled: `[R]` bool, accepted by equality under shared noise.
        length, accepted: `[R]` draft tokens verified and accepted.
        explored: `[R]` bool, the length was γ by a choice made before the draft.
        limit: `[R]`, the most each could verify.
        confidence: `[R, γ]` float32 raw, None when nothing was drafted.
    """

    rid: tuple[str, ...]
    temperature: npt.NDArray[np.float64]
    coupled: npt.NDArray[np.bool_]
    length: npt.NDArray[np.int64]
    accepted: npt.NDArray[np.int64]
    explored: npt.NDArray[np.bool_]
    limit: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class Round:
    """One decoding round.

    Attributes:
        time: Unix seconds at its start.
        seconds: to the start of the next round of the same requests; None when something else came between.
        parts: seconds by part, None where not measured.
        requests, tokens: R and the tokens verified, anchors counted.
        requested: tokens a sweep asked for, else None.
        context: committed tokens of all requests before the round.
        drafted: False where the draft forward was skipped.
        mode: what chose the lengths.
        rows: None unless the server records them.
    """

    time: float
    seconds: float | None
    parts: Mapping[str, float] | None
    requests: int
    tokens: int
    requested: int | None
    context: int
    drafted: bool
    mode: str
    rows: Rows | None


@dataclass(frozen=True)
class RoundLog:
    """A folder of records. Iterating reads the files anew, one line at a time.

    Attributes:
        gamma: draft tokens a request.
        identity: of the server that wrote them, None if it could not tell.
        files: in the order they were written.
    """

    gamma: int
    identity: Identity | None
    files: tuple[Path, ...]

    @classmethod
    def open(cls, folder: Path, rank: int = 0) -> RoundLog:
        """The records of one tensor-parallel rank; ranks decide alike, so one tells all but its own times.

        Raises:
            RecordError: there are none, or they come from different servers.
        """
        named = [(match, path) for path in folder.glob("*.jsonl") if (match := _NAME.search(path.name))]
        mine = [(int(m[2]), int(m[3]), path) for m, path in named if int(m[1]) == rank]
        # A process writes its first line when it starts; ids are not in the order of starting.
        headers = [(_header(path), path) for _, _, path in sorted(mine, key=lambda entry: entry[:2])]
        known = [(header, path) for header, path in headers if header is not None]
        if not known:
            raise RecordError(f"{folder}: no round records of rank {rank}; serve with --dspark-record {folder}")
        first = known[0][0]
        for header, path in known[1:]:
            if (header["gamma"], header.get("identity")) != (first["gamma"], first.get("identity")):
                raise RecordError(f"{path}: written by another server than {known[0][1].name}; use a folder for each")
        identity = first.get("identity")
        return cls(
            gamma=int(first["gamma"]),
            identity=Identity.from_dict(identity, f"{known[0][1]}: identity") if identity else None,
            files=tuple(path for _, path in known),
        )

    def __iter__(self) -> Iterator[Round]:
        for path in self.files:
            yield from _rounds(path)


def _header(path: Path) -> dict[str, Any] | None:
    """A file's first line; None where not even that is complete yet."""
    with path.open("rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        header = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{path}, line 1: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("version") != VERSION:
        raise RecordError(f'{path}, line 1: expected the header of "{FORMAT}", version {VERSION}; got {header}')
    return header


def _rounds(path: Path) -> Iterator[Round]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # The last line of a file that is being written, or whose writer was killed.
            if number == 1 or not line.endswith(b"\n"):
                continue
            try:
                yield _round(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(f"{path}, line {number}: {type(error).__name__}: {error}") from error


def _round(data: dict[str, Any]) -> Round:
    return Round(
        time=data["time"],
        seconds=data["seconds"],
        parts=data.get("parts"),
        requests=data["requests"],
        tokens=data["tokens"],
        requested=data.get("requested"),
        context=data["context"],
        drafted=data["drafted"],
        mode=data["mode"],
        rows=None if data.get("rows") is None else _rows(data["rows"]),
    )


def _rows(data: dict[str, Any]) -> Rows:
    confidence = data["confidence"]
    return Rows(
        rid=tuple(data["rid"]),
        temperature=np.asarray(data["temperature"], dtype=np.float64),
        coupled=np.asarray(data["coupled"], dtype=np.bool_),
        length=np.asarray(data["length"], dtype=np.int64),
        accepted=np.asarray(data["accepted"], dtype=np.int64),
        explored=np.asarray(data["explored"], dtype=np.bool_),
        limit=np.asarray(data["limit"], dtype=np.int64),
        confidence=None if confidence is None else np.asarray(confidence, dtype=np.float32),
    )
