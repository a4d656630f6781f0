"""Open-loop load: requests are sent when they arrive, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence

from sglang_dspark.evaluate.load import LoadRun, Request, Result, converse, open_session


def run_open_loop(
    base_url: str,
    requests: Sequence[Request],
    arrivals: Sequence[float],
    *,
    request_seconds: float = 600.0,
    on_result: Callable[[Result], None] | None = None,
) -> LoadRun:
    """Send request i at `arrivals[i]` seconds after the start and wait for all answers.

    Args:
        base_url, requests: where and what.
        arrivals: ascending, as many as requests.
        request_seconds: limit for each answer.
        on_result: called with every answer.

    Raises:
        ValueError: the numbers of requests and arrivals differ, or the times go backwards.
    """
    if len(arrivals) != len(requests) or any(b < a for a, b in itertools.pairwise(arrivals)):
        raise ValueError(f"{len(requests)} requests need as many ascending arrival times, not {len(arrivals)}")
    return asyncio.run(_open_loop(base_url, requests, arrivals, request_seconds, on_result))


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """`count` arrival times in seconds of a Poisson process with `rate` a second; the same for the same seed."""
    draw = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(now)
    return times


async def _open_loop(
    base_url: str,
    requests: Sequence[Request],
    arrivals: Sequence[float],
    request_seconds: float,
    on_result: Callable[[Result], None] | None,
) -> LoadRun:
    async with open_session(request_seconds) as session:
        start = time.perf_counter()

        async def user(request: Request, at: float) -> list[Result]:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            return await converse(session, base_url, request, on_result)

        answers = await asyncio.gather(*(user(r, at) for r, at in zip(requests, arrivals, strict=True)))
        seconds = time.perf_counter() - start
    return LoadRun([result for conversation in answers for result in conversation], seconds)
