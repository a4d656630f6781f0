"""Requests that are dropped in the middle of a block leave no trace: not in other answers, not in the KV pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from sglang_dspark.evaluate.endpoints import flush_cache, load, metrics, wait_idle
from sglang_dspark.evaluate.equality import EqualityReport
from sglang_dspark.evaluate.load import Request, Result, open_session, run_load, send
from sglang_dspark.evaluate.server import ServerProcess

pytestmark = pytest.mark.e2e

# New tokens of the 12 requests, and those dropped on the way: how, and after how many tokens.
LENGTHS = [5, 48, 17, 31, 48, 8, 23, 48, 12, 48, 3, 29]
DROPPED = {1: ("abort", 4), 4: ("hang up", 2), 7: ("abort", 11), 9: ("hang up", 7)}


@pytest.mark.known_case(11)
def test_outputs_and_kv_pool(dspark: ServerProcess, requests: list[Request], reference: list[Result]) -> None:
    flush_cache(dspark.base_url)
    mixed = [
        replace(
            request,
            sampling={**request.sampling, "max_new_tokens": length},
            rid=f"aborts-{i:02}",  # of equal length: the engine aborts every id that starts with the one given
            stream=True,
        )
        for i, (request, length) in enumerate(zip(requests, LENGTHS, strict=False))
    ]
    results = asyncio.run(run_with_aborts(dspark.base_url, mixed))

    kept = [i for i in range(len(mixed)) if i not in DROPPED]
    report = EqualityReport()
    report.add("among aborts", [cut(reference[i], LENGTHS[i]) for i in kept], [results[i] for i in kept])
    assert len(report.differences) == len(report.ties) <= 1, report.as_json()
    assert report.drafted > 0
    assert all(results[i].error and len(results[i].output_ids) < LENGTHS[i] for i in DROPPED)

    # `used` leaves out what only the prefix cache holds: slots of a dropped request would stay in it.
    now = wait_idle(dspark.base_url)
    assert now.used_tokens == 0
    pool = metrics(dspark.base_url)
    assert pool["sglang:kv_available_tokens"] + pool["sglang:kv_evictable_tokens"] == now.total_tokens
    flush_cache(dspark.base_url)
    assert load(dspark.base_url).used_tokens == 0


@pytest.mark.known_case(11)
def test_the_slots_of_aborted_requests_are_clean(
    dspark: ServerProcess, requests: list[Request], reference: list[Result]
) -> None:
    report = EqualityReport()
    report.add("after aborts", reference[:12], run_load(dspark.base_url, requests[:12], 12).results)
    assert len(report.differences) == len(report.ties) <= 1, report.as_json()


async def run_with_aborts(base_url: str, mixed: list[Request]) -> list[Result]:
    """All at once; each of `DROPPED` is dropped while it is answered."""
    async with open_session() as session, httpx.AsyncClient(base_url=base_url) as control:

        async def answer(request: Request) -> Result:
            return await send(session, base_url, request)

        async def drop(request: Request, how: str, tokens: int) -> Result:
            reached = asyncio.Event()

            def watch(result: Result) -> None:
                if len(result.output_ids) >= tokens:
                    reached.set()

            task = asyncio.create_task(send(session, base_url, request, watch))
            await reached.wait()
            if how == "abort":
                (await control.post("/abort_request", json={"rid": request.rid})).raise_for_status()
            else:
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            return result if isinstance(result, Result) else Result(request.id, request.domain, 0.0, error="hung up")

        return await asyncio.gather(
            *(drop(request, *DROPPED[i]) if i in DROPPED else answer(request) for i, request in enumerate(mixed))
        )


def cut(result: Result, length: int) -> Result:
    """The plain engine's answer as it would be with `length` new tokens."""
    return replace(result, output_ids=result.output_ids[:length])
