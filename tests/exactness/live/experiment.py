"""Run all settings: one engine per server configuration, two engines at a time."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from live.check import Evidence, evidence
from live.reference import Reference
from live.sampling import PAIR, Drawn, EngineJob, Stream, draw
from live.settings import Setting

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


def stream_of(setting: Setting, tokens: int, seed: int) -> Stream:
    """Enough requests for `tokens` tokens drawn by rounds."""
    count = -(-tokens // (NEW_TOKENS - 1))
    return Stream(prompts(count, setting.shared_prefix, seed), setting.sampling, setting.batch, NEW_TOKENS)


def run(
    settings: list[Setting],
    tokens: dict[int, int],
    timeout: float,
    planted: str | None = None,
    server: dict[str, Any] | None = None,
) -> dict[str, tuple[Evidence, Drawn]]:
    """Evidence of every setting.

    Args:
        tokens: to draw by rounds, by batch size.
        timeout: seconds for each engine.
        planted: an error to plant, by name.
        server: fields of `DSparkConfig` on top of each setting's.
    """
    servers: dict[str, list[int]] = {}
    for index, setting in enumerate(settings):
        servers.setdefault(json.dumps(setting.server | (server or {})), []).append(index)
    streams = [stream_of(setting, tokens[setting.batch], index) for index, setting in enumerate(settings)]

    def serve(configuration: str) -> list[Drawn]:
        members = servers[configuration]
        chosen = [streams[index] for index in members]
        return draw(EngineJob(json.loads(configuration), 1 + members[0], chosen, planted), timeout)

    def work(configuration: str) -> float:
        return sum(tokens[settings[index].batch] / settings[index].batch for index in servers[configuration])

    order = sorted(servers, key=work, reverse=True)  # the longest first, so that the two engines end together
    with ThreadPoolExecutor(TOGETHER) as pool:
        answers = list(pool.map(serve, order))
    drawn: dict[int, Drawn] = {}
    for configuration, results in zip(order, answers, strict=True):
        drawn |= dict(zip(servers[configuration], results, strict=True))
    reference = Reference(PAIR / "target")
    return {
        str(setting): (evidence(reference, streams[index], drawn[index]), drawn[index])
        for index, setting in enumerate(settings)
    }
