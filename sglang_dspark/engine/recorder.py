"""Round records on disk: what was asked for, what it took, what was accepted (format: docs/records.md)."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sglang_dspark.engine.rounds import Round

logger = logging.getLogger(__name__)

FORMAT, VERSION = "dspark-rounds", 1
# The folder's limit is kept by dropping the oldest of about this many files.
_FILES = 8
# Rounds waiting for the disk; past it they are dropped and counted, the engine does not wait.
_WAITING = 4096


class Recorder:
    """Writes rounds from a thread of its own, so that the engine never waits for the disk.

    Every batch of lines is flushed at once: a server that is killed loses what came in the last moments only.

    Args:
        folder: made if missing; several ranks and servers may share it.
        limit_mib: disk this process may take; the oldest of its files go first.
        header: what the files say about the server.
        rank: names the files.
        rows: also write what concerns single requests: confidences, acceptance.
    """

    def __init__(self, folder: Path, limit_mib: float, header: dict[str, Any], rank: str, rows: bool = True) -> None:
        self._folder, self._rank, self._rows = folder, rank, rows
        self._file_bytes = int(limit_mib * 2**20 / _FILES)
        self._header = json.dumps({"format": FORMAT, "version": VERSION, **header}, default=_plain)
        self._queue: queue.Queue[Round] = queue.Queue(maxsize=_WAITING)
        self._written: list[Path] = []
        self.dropped = 0
        folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._run, name="dspark-recorder", daemon=True).start()

    def put(self, finished: Round) -> None:
        try:
            self._queue.put_nowait(finished)
        except queue.Full:
            self.dropped += 1

    @property
    def idle(self) -> bool:
        """Everything handed over is on disk."""
        return self._queue.unfinished_tasks == 0

    def _run(self) -> None:
        try:
            while True:
                with self._next_file() as file:
                    while file.tell() < self._file_bytes:
                        self._write_waiting(file)
        except OSError as error:
            logger.error("DSpark: --dspark-record %s: %s; recording ends here", self._folder, error)

    def _write_waiting(self, file: TextIO) -> None:
        waiting = [self._queue.get()]
        while not self._queue.empty():
            waiting.append(self._queue.get())
        file.writelines(json.dumps(line(r, self._rows), default=_plain) + "\n" for r in waiting)
        file.flush()
        for _ in waiting:
            self._queue.task_done()

    def _next_file(self) -> TextIO:
        path = self._folder / f"rounds-{self._rank}-{os.getpid()}-{len(self._written)}.jsonl"
        self._written.append(path)
        if len(self._written) > _FILES:
            self._written[-_FILES - 1].unlink(missing_ok=True)
        file = path.open("w")
        file.write(self._header + "\n")
        file.flush()
        return file


def line(round_: Round, rows: bool) -> dict[str, Any]:
    """One round as the record holds it."""
    detail = None
    if rows:
        confidence = round_.confidence
        detail = {
            "rid": [r.rid for r in round_.requests],
            "temperature": [round(float(t), 4) for t in round_.temperatures],
            "coupled": round_.coupled,
            "length": round_.lengths,
            "limit": round_.limits,
            "accepted": round_.accepted(),
            "explored": round_.explored,
            # Nine digits would bring float32 back exactly; six are far below what a calibration can tell apart.
            "confidence": None if confidence is None else [[round(float(c), 6) for c in row] for row in confidence],
        }
    return {
        "time": round_.at,
        "seconds": round_.seconds,
        "parts": round_.parts,
        "requests": len(round_.requests),
        "tokens": round_.tokens,
        "requested": round_.requested,
        "context": round_.context,
        "drafted": round_.drafts,
        "mode": round_.mode,
        "rows": detail,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__}")
