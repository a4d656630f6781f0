"""The demo pair behind real servers, started once for all tests here.

`pytest tests/e2e --serve-flags='--model-path DIR --dspark-draft DIR'` tests another pair.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_dspark.evaluate.endpoints import server_info
from sglang_dspark.evaluate.equality import greedy_requests, plain_reference
from sglang_dspark.evaluate.load import Request, Result
from sglang_dspark.evaluate.prompts import load_prompts, load_tokenizer
from sglang_dspark.evaluate.server import ServerProcess

SMALL = [
    *("--max-total-tokens", "8192", "--context-length", "1024", "--max-running-requests", "16"),
    # Gauges are exported with the decode log; and idle servers must leave the cores to the one under test.
    *("--decode-log-interval", "1", "--sleep-on-idle"),
]

Serve = Callable[..., ServerProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--serve-flags", default="", help="flags of serve for every server of the end-to-end tests")


@pytest.fixture(scope="session")
def serve(request: pytest.FixtureRequest) -> Serve:
    """A server, not yet started, with the small limits of these tests and `*flags`."""
    common = shlex.split(request.config.getoption("--serve-flags", default="") or "")

    def make(*flags: str, name: str = "e2e", **options: Any) -> ServerProcess:
        # The flags of one test come last, where they win.
        return ServerProcess([*common, *SMALL, *flags], name=name, **options)

    return make


@pytest.fixture(scope="session")
def plain(serve: Serve) -> Iterator[ServerProcess]:
    """Plain serving, without speculation."""
    with serve("--dspark-draft", "none", name="plain") as server:
        yield server


@pytest.fixture(scope="session")
def dspark(serve: Serve) -> Iterator[ServerProcess]:
    """The demo pair, every round drafting and verifying everything."""
    with serve("--dspark-policy", "fixed", name="dspark") as server:
        yield server


@pytest.fixture(scope="session")
def threshold(serve: Serve) -> Iterator[ServerProcess]:
    """The threshold policy under overlapped scheduling."""
    with serve("--dspark-policy", "threshold", "--dspark-overlap", "on", name="threshold-overlap") as server:
        yield server


@pytest.fixture(scope="session")
def undrafted(serve: Serve) -> Iterator[ServerProcess]:
    """Speculation that never drafts: every round verifies the anchor alone."""
    with serve("--dspark-verify-length", "0", name="undrafted") as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer(plain: ServerProcess) -> Any:
    return load_tokenizer(server_info(plain.base_url)["tokenizer_path"])


@pytest.fixture(scope="session")
def requests(tokenizer: Any) -> list[Request]:
    """16 prompts of the package, greedy, 48 new tokens."""
    return greedy_requests(load_prompts(limit=16), tokenizer, max_new_tokens=48)


@pytest.fixture(scope="session")
def reference(plain: ServerProcess, requests: list[Request]) -> list[Result]:
    """What the plain engine answers to `requests`, one at a time, with its candidates."""
    return plain_reference(plain.base_url, requests)
