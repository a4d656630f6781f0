from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

# The benchmark scripts and this folder's fakes are imported by their bare names.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "python_bench")]

from evaluation_fakes import FakeEngine  # noqa: E402


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """A running fake; change its attributes before sending requests."""
    fake = FakeEngine()
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(fake.app())

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield fake
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
