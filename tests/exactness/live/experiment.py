"""Run all settings: one engine per server configuration, two engines at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from live.check import Evidence, evidence
from live.reference import Reference
from live.sampling import PAIR, Drawn, EngineJob, Stream, draw
from live.settings import SECONDS, Setting

NEW_TOKENS = 33  # 32 of them drawn by rounds
TOGETHER = 2  # engines at a time, each on one thread
FIRST, LAST = 3, 15  # letters
PREFIX = 40


def prompts(count: int, shared_prefix: bool, seed: int) -> list[list[int]]:
    """Random letters; with a shared prefix, most of each prompt is one text and the rest one of few."""
    rng = random.Random(seed)

    def letters(n: int) -> list[int]:
        return [rng.randint(FIRST, LAST) for _ in range(n)]

    if not shared_prefix:
        return [[1, *letters(6)] for _ in range(count)]
    prefix, ends = letters(PREFIX), [letters(3) for _ in range(8)]
    return [[1, *prefix, *rng.choice(ends)] for _ in range(count)]


@dataclass(frozen=True)
class Run:
    """Tokens to draw with one setting.

    Attributes:
        tokens: to draw by rounds.
        planted: an error to plant, by name.
        server: fields of `DSparkConfig` on top of the setting's.
    """

    setting: Setting
    tokens: int
    planted: str | None = None
    server: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(
            [str(self.setting), *map(str, self.server.values()), *([self.planted] if self.planted else [])]
        )

    @property
    def engine(self) -> str:
        """Runs of equal text share an engine."""
        return json.dumps([self.setting.server | self.server, self.planted])

    def stream(self, seed: int) -> Stream:
        """Enough requests for the tokens."""
        count = -(-self.tokens // (NEW_TOKENS - 1))
        setting = self.setting
        return Stream(prompts(count, setting.shared_prefix, seed), setting.sampling, setting.batch, NEW_TOKENS)


def draw_all(runs: Sequence[Run], timeout: float) -> list[tuple[Evidence, Drawn]]:
    """Evidence of every run.

    Args:
        timeout: seconds for each engine.
    """
    engines: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        engines.setdefault(run.engine, []).append(index)
    streams = [run.stream(index) for index, run in enumerate(runs)]

    def serve(engine: str) -> list[Drawn]:
        server, planted = json.loads(engine)
        members = engines[engine]
        return draw(EngineJob(server, 1 + members[0], [streams[index] for index in members], planted), timeout)

    def work(engine: str) -> float:
        return sum(runs[index].tokens * SECONDS[runs[index].setting.batch] for index in engines[engine])

    order = sorted(engines, key=work, reverse=True)  # the longest first, so that the two lanes end together
    with ThreadPoolExecutor(TOGETHER) as pool:
        answers = list(pool.map(serve, order))
    drawn: dict[int, Drawn] = {}
    for engine, results in zip(order, answers, strict=True):
        drawn |= dict(zip(engines[engine], results, strict=True))
    reference = Reference(PAIR / "target")
    return [(evidence(reference, stream, drawn[index]), drawn[index]) for index, stream in enumerate(streams)]
