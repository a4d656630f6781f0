"""The sweep of `profile`: which loads to run, in which order, and the measured rounds of each, kept for a resume."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.errors import ConfigError, DSparkError
from sglang_dspark.evaluate.rounds import Round, RoundLog
from sglang_dspark.identity import Identity
from sglang_dspark.schedule.cost_fit import MIN_REPEATS, Sample

REQUESTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (64, 512, 1024)
ANSWER_TOKENS = 128
PASSES = 2
# Runs of one cell and pass until each kind of round was seen often enough.
_MOST_RUNS = 4
# Of the KV pool; where less is free, a fuse cuts the lengths that the sweep asks for.
_USED = 0.85
_SETTLE_SECONDS = 5.0
_STATE, _CELL = "identity.json", "cell-r{0}-c{1}-p{2}.json"


class SweepError(DSparkError, RuntimeError):
    """The server did not do what the sweep asked for."""


@dataclass(frozen=True)
class Cell:
    """One load: so many requests at a time, prompts of so many tokens; every cell is visited once a pass."""

    requests: int
    context: int
    visit: int

    @property
    def weight(self) -> float:
        """Guess at its share of the time."""
        return 8.0 + self.requests * (1.0 + self.context / 1024.0)


def plan(
    most_requests: int,
    context_length: int,
    pool_tokens: int,
    *,
    requests: Iterable[int] = REQUESTS,
    contexts: Sequence[int] = CONTEXTS,
    seed: int = 0,
) -> list[Cell]:
    """The cells that fit the server, in the order to run them.

    Drift of the machine must not look like an effect of the load, so the order is random. A budget may end the sweep
    early, so that a coarse grid comes first, then the rest of the first pass, then the second.

    Args:
        most_requests: the server's limit on running requests, measured too.
        context_length: longest prompt and answer together.
        pool_tokens: KV slots.
        requests, contexts: wanted.
        seed: of the order.

    Raises:
        ConfigError: nothing fits.
    """
    counts = sorted({r for r in requests if 1 <= r < most_requests} | {most_requests})
    fitting = [
        (r, c)
        for r in counts
        for c in sorted(set(contexts))
        if c + ANSWER_TOKENS < context_length and r * (c + ANSWER_TOKENS) <= _USED * pool_tokens
    ]
    if not fitting:
        raise ConfigError(
            f"--contexts {' '.join(map(str, contexts))}: none fits with an answer of {ANSWER_TOKENS} tokens into "
            f"a context of {context_length} and {pool_tokens} KV slots"
        )
    longest = max(c for _, c in fitting)
    coarse = {(r, c) for r, c in fitting if r in counts[::3] + counts[-1:] and c in (fitting[0][1], longest)}
    order = random.Random(seed)
    cells = [Cell(r, c, visit) for visit in range(PASSES) for r, c in fitting]
    return sorted(cells, key=lambda cell: (cell.visit, (cell.requests, cell.context) not in coarse, order.random()))


class Sweep:
    """Runs cells, and keeps what they measured in a folder, so that a later call goes on where this one stopped.

    Args:
        work: the folder.
        records: where the server writes its round records.
        drive: puts a cell's load on the server once and returns when it is answered.
        settle_seconds: how long records may come after the answers.
    """

    identity: Identity
    gamma: int

    def __init__(
        self, work: Path, records: Path, drive: Callable[[Cell], None], settle_seconds: float = _SETTLE_SECONDS
    ) -> None:
        self._work, self._records, self._drive = work, records, drive
        self._settle_seconds = settle_seconds

    def run(self, cell: Cell) -> list[Sample]:
        """Measure one cell, or read what was measured of it before.

        Raises:
            SweepError: the server verified other tokens than it was asked to, or wrote no records.
            ConfigError: the folder belongs to another server.
        """
        path = self._work / _CELL.format(cell.requests, cell.context, cell.visit)
        if path.is_file():
            return [Sample(*fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
        rounds: list[Round] = []
        for _ in range(_MOST_RUNS):
            start = time.time()
            self._drive(cell)
            rounds += self._since(start)
            if _complete(rounds, cell.requests):
                break
        samples = usable(rounds)
        part = path.with_suffix(".part")
        part.write_text(json.dumps([list(vars(s).values()) for s in samples]), encoding="utf-8")
        part.replace(path)
        return samples

    def done(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those of `cells` that were measured already."""
        return [c for c in cells if (self._work / _CELL.format(c.requests, c.context, c.visit)).is_file()]

    def bind(self) -> None:
        """Learn from the records which server is measured, and tie the folder to it.

        Raises:
            SweepError: no records, or none that say whose they are.
            ConfigError: the folder holds another server's measurements.
        """
        deadline = time.monotonic() + self._settle_seconds
        while not any(self._records.glob("*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        log = RoundLog.open(self._records)
        if log.identity is None:
            raise SweepError(f"{self._records}: the records do not say which server wrote them")
        self.identity, self.gamma = log.identity, log.gamma
        state = self._work / _STATE
        if state.is_file():
            earlier = Identity.from_dict(json.loads(state.read_text(encoding="utf-8")), str(state))
            if differences := earlier.differences(self.identity):
                raise ConfigError(
                    f"{self._work}: holds measurements of another server (here; this one is there): "
                    f"{'; '.join(differences)}. Remove the folder, or choose another --output"
                )
        else:
            state.write_text(json.dumps(self.identity.as_dict()), encoding="utf-8")

    def _since(self, start: float) -> list[Round]:
        """Rounds that started after `start`, once no more come."""
        deadline = time.monotonic() + self._settle_seconds
        found: list[Round] = []
        while True:
            before = len(found)
            found = [r for r in RoundLog.open(self._records) if r.time >= start]
            if (found and len(found) == before) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if not found:
            raise SweepError(f"{self._records}: no round was recorded; is --dspark-record served by this version?")
        return found


def usable(rounds: Iterable[Round]) -> list[Sample]:
    """Timed rounds of a sweep.

    Raises:
        SweepError: a round verified another number of tokens than was asked for: what was timed is not what was meant.
    """
    samples = []
    for one in rounds:
        if one.requested is not None and one.requested != one.tokens:
            raise SweepError(
                f"a round of {one.requests} requests was to verify {one.requested} tokens and verified {one.tokens}; "
                "nothing measured here can be relied on"
            )
        if one.mode == "sweep" and one.seconds is not None and one.requests > 0:
            samples.append(Sample(one.requests, one.tokens, one.context, one.drafted, one.seconds))
    return samples


def _complete(rounds: Sequence[Round], requests: int) -> bool:
    """Every kind of round that was asked for at the wanted load was timed `MIN_REPEATS` times."""
    mine = [r for r in rounds if r.requests == requests]
    timed = Counter((r.tokens, r.drafted) for r in mine if r.seconds is not None)
    asked = {(r.tokens, r.drafted) for r in mine if r.requested is not None}
    return bool(asked) and min(timed[kind] for kind in asked) >= MIN_REPEATS
