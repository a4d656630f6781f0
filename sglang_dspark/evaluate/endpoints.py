"""A running server's control endpoints, as plain blocking calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sglang_dspark.errors import DSparkError


class EndpointError(DSparkError, RuntimeError):
    """A control endpoint refused, or did not answer in time."""


@dataclass(frozen=True)
class Load:
    """What the scheduler holds right now.

    Attributes:
        running: requests being decoded.
        waiting: requests in its queue.
        used_tokens: KV slots held by requests; those that only the prefix cache keeps are not in it.
        total_tokens: KV slots of the pool.
    """

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int


def load(base_url: str) -> Load:
    """The current load of a server with one data-parallel rank."""
    (rank,) = _get(base_url, "/v1/loads", include="core").json()["loads"]
    return Load(
        running=rank["num_running_reqs"],
        waiting=rank["num_waiting_reqs"],
        used_tokens=rank["num_used_tokens"],
        total_tokens=rank["max_total_num_tokens"],
    )


def wait_idle(base_url: str, seconds: float = 30.0) -> Load:
    """Wait until no request is running, waiting or holding KV slots.

    Raises:
        EndpointError: the server is not idle after `seconds`; the message has what it still holds.
    """
    deadline = time.monotonic() + seconds
    while True:
        now = load(base_url)
        if now.running == now.waiting == now.used_tokens == 0:
            return now
        if time.monotonic() > deadline:
            raise EndpointError(f"{base_url} is not idle after {seconds:.0f} s: {now}")
        time.sleep(0.2)


def flush_cache(base_url: str, seconds: float = 30.0) -> None:
    """Empty the prefix cache.

    The engine refuses while it still settles the last request, so this asks again until the time limit.

    Raises:
        EndpointError: still refused after `seconds`.
    """
    deadline = time.monotonic() + seconds
    with httpx.Client(base_url=base_url, timeout=seconds, trust_env=False) as client:
        while True:
            answer = client.post("/flush_cache")
            if answer.status_code == 200:
                return
            if time.monotonic() > deadline:
                raise EndpointError(f"{base_url}/flush_cache refused for {seconds:.0f} s: {answer.text.strip()}")
            time.sleep(0.2)


def server_info(base_url: str) -> dict[str, Any]:
    """The resolved flags, the engine's version and the schedulers' internal states."""
    info: dict[str, Any] = _get(base_url, "/server_info").json()
    return info


def dspark_state(base_url: str) -> dict[str, dict[str, Any]]:
    """What each rank's scheduler last said of itself, by rank; empty before the first round."""
    state: dict[str, dict[str, Any]] = _get(base_url, "/dspark/state").json()
    return state


def metrics(base_url: str) -> dict[str, float]:
    """Every sample of `/metrics`, summed over its labels. The server needs `--enable-metrics`."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(_get(base_url, "/metrics").text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def _get(base_url: str, path: str, **parameters: str) -> httpx.Response:
    answer = httpx.get(base_url + path, params=parameters, timeout=30.0, follow_redirects=True, trust_env=False)
    if answer.status_code != 200:
        raise EndpointError(f"{base_url}{path} answered {answer.status_code}: {answer.text.strip()[:500]}")
    return answer
