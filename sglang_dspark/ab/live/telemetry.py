"""What a fleet says of itself on `/metrics`, and how two readings differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sglang_dspark.ab.live.config import Fleet

_TTFT = "sglang:time_to_first_token_seconds"
_GAP = "sglang:inter_token_latency_seconds"
_ACCEPT = "sglang:spec_accept_length"


@dataclass(frozen=True)
class Reading:
    """Of a fleet's workers together, since they started.

    Attributes:
        ttft: requests by upper edge of the time to the first token, cumulative.
        gap_seconds, gaps: sum and number of the times between tokens.
        accept_length: mean of the workers' gauges; None without speculation.
        answered: workers that gave metrics.
    """

    ttft: Mapping[float, float] = field(default_factory=dict)
    gap_seconds: float = 0.0
    gaps: float = 0.0
    accept_length: float | None = None
    answered: int = 0


def read_fleet(fleet: Fleet, client: httpx.Client) -> Reading:
    """Read all workers of a fleet; one that does not answer is left out, which `answered` shows."""
    workers = fleet.metrics or fleet.workers

    def read(worker: str) -> str | None:
        try:
            answer = client.get(f"{worker}/metrics", follow_redirects=True)
        except httpx.TransportError:
            return None
        return answer.text if answer.status_code == 200 else None

    # All at once: one that hangs may not delay what is decided about the others.
    with ThreadPoolExecutor(min(32, len(workers))) as pool:
        return parse([text for text in pool.map(read, workers) if text is not None])


def parse(texts: Sequence[str]) -> Reading:
    """Add up the metrics of several workers."""
    ttft: dict[float, float] = {}
    gap_seconds = gaps = 0.0
    accepts = []
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"{_TTFT}_bucket":
                    edge = float(sample.labels["le"])
                    ttft[edge] = ttft.get(edge, 0.0) + sample.value
                elif sample.name == f"{_GAP}_sum":
                    gap_seconds += sample.value
                elif sample.name == f"{_GAP}_count":
                    gaps += sample.value
                elif sample.name == _ACCEPT and sample.value > 0:
                    accepts.append(sample.value)
    accept = sum(accepts) / len(accepts) if accepts else None
    return Reading(ttft, gap_seconds, gaps, accept, len(texts))


def quantile(old: Reading, new: Reading, part: float) -> float | None:
    """Of the times to the first token between two readings: the upper edge of the bucket it lies in.

    None without a request in between, or after a worker began anew. Infinite above the last edge.
    """
    counts = {edge: count - old.ttft.get(edge, 0.0) for edge, count in sorted(new.ttft.items())}
    total = counts.get(math.inf, 0.0)
    if total <= 0 or min(counts.values()) < 0:
        return None
    return next(edge for edge, count in counts.items() if count >= part * total)


def mean_gap(old: Reading, new: Reading) -> float | None:
    """Mean seconds between tokens between two readings; None without tokens, or after a worker began anew."""
    gaps, seconds = new.gaps - old.gaps, new.gap_seconds - old.gap_seconds
    return seconds / gaps if gaps > 0 and seconds > 0 else None
