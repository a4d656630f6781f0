"""Throughput at a load: N users kept busy for a time.

At the end of a list of requests fewer and fewer users are left, and an arm whose fast answers end early spends more of
its run that way; `load.run_load` has to be given lists much longer than N before that does not matter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from sglang_dspark.evaluate.load import Request, Result, Speculation, open_session, send


@dataclass(frozen=True)
class SteadyRun:
    """What N busy users got between two times on this process's monotonic clock; unfinished answers are among them.

    Attributes:
        results: in the order they were sent; the last of every user was aborted.
        begin, end: seconds; every user had its first token at `begin`.
        failed: requests that ended in an error by themselves, which ends the run.
        silent_seconds: for how long at `end` the user that waited longest had got nothing.
    """

    results: list[Result]
    begin: float
    end: float
    failed: list[Result]
    silent_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens that arrived in between, all users together, by its seconds."""
        tokens = sum(_until(result, self.end) - _until(result, self.begin) for result in self.results)
        return tokens / (self.end - self.begin)

    @property
    def speculation(self) -> Speculation:
        """Of all rounds, those before `begin` included."""
        return sum((result.speculation for result in self.results if result.meta), Speculation())


def steady_load(
    base_url: str, requests: Sequence[Request], users: int, seconds: float, *, request_seconds: float = 600.0
) -> SteadyRun:
    """Keep `users` busy for `seconds`, from when each of them has its first token.

    User u starts with requests[u], and first answers are cut to different lengths, so that users are anywhere in their
    answers from the start. What runs at the end is aborted.

    Raises:
        ValueError: fewer requests than users.
    """
    if len(requests) < users:
        raise ValueError(f"{len(requests)} requests for {users} users")
    return asyncio.run(_Users(base_url, requests, users).run(seconds, request_seconds))


class _Users:
    def __init__(self, base_url: str, requests: Sequence[Request], users: int) -> None:
        self._url, self._requests, self._users = base_url, requests, users
        self._next = itertools.count(users)
        self._results: list[Result] = []
        self._failed: list[Result] = []
        self._without_token = set(range(users))
        self._all_running = asyncio.Event()
        self._last = [time.perf_counter()] * users

    async def run(self, seconds: float, request_seconds: float) -> SteadyRun:
        async with open_session(request_seconds) as session:

            async def user(number: int) -> None:
                request = _shortened(self._requests[number], (number + 1) / (self._users + 1))
                while not self._failed:
                    result = await self._one(session, number, request)
                    if result.error is not None:
                        self._failed.append(result)
                    request = self._requests[next(self._next) % len(self._requests)]

            tasks = [asyncio.create_task(user(number)) for number in range(self._users)]
            ready = asyncio.create_task(self._all_running.wait())
            await asyncio.wait([ready, *tasks], return_when=asyncio.FIRST_COMPLETED)
            begin = time.perf_counter()
            if not self._failed:
                # No user ends unless a request fails.
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            end = time.perf_counter()
            for task in (ready, *tasks):
                task.cancel()
            await asyncio.gather(ready, *tasks, return_exceptions=True)
        return SteadyRun(self._results, begin, end, self._failed, end - min(self._last))

    async def _one(self, session: aiohttp.ClientSession, number: int, request: Request) -> Result:
        known: list[Result] = []

        self._last[number] = time.perf_counter()

        def keep(result: Result) -> None:
            self._last[number] = time.perf_counter()
            # At the first piece: a request that is aborted later has given what it has.
            if not known:
                known.append(result)
                self._results.append(result)
                self._without_token.discard(number)
                if not self._without_token:
                    self._all_running.set()

        return await send(session, self._url, request, on_piece=keep)


def _shortened(request: Request, part: float) -> Request:
    limit = max(2, round(part * request.sampling["max_new_tokens"]))
    return dataclasses.replace(request, sampling={**request.sampling, "max_new_tokens": limit})


def _until(result: Result, at: float) -> int:
    return max((count for after, count in result.arrivals if result.sent_at + after <= at), default=0)
