"""What one load run says: throughput, the speed each user saw, and what speculation did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_dspark.evaluate.load import LoadRun, Result, Speculation
from sglang_dspark.evaluate.statistics import Interval, accept_length, mean_accept_length, percentile


@dataclass(frozen=True)
class RunSummary:
    """Figures of one run. A figure that the run cannot give is None.

    Attributes:
        requests, failed: requests sent, and those without a complete answer. Failed ones are in no other figure.
        seconds: first send to last answer.
        output_tokens: of all answered requests.
        output_tokens_per_second: `output_tokens / seconds`.
        user_tokens_per_second: median over requests of the speed after the first token.
        ttft_p50, ttft_p95: seconds to the first token.
        inter_token_p50, inter_token_p95: seconds between tokens.
        accept_length: tokens per request and verification round, bonus counted (`mean_accept_length`).
        verified_per_round: tokens verified per request and round, anchor counted.
        speculation: the sums behind the last two.
    """

    requests: int
    failed: int
    seconds: float
    output_tokens: int
    output_tokens_per_second: float
    user_tokens_per_second: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    inter_token_p50: float | None
    inter_token_p95: float | None
    accept_length: float | None
    verified_per_round: float | None
    speculation: Speculation

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, ready for `json.dump`."""
        return asdict(self)


def summarise(run: LoadRun) -> RunSummary:
    """Reduce one run to its figures."""
    answered = run.answered
    tokens = sum(len(result.output_ids) for result in answered)
    speeds = [speed for result in answered if (speed := result.decode_tokens_per_second()) is not None]
    first = [result.ttft for result in answered if result.arrivals]
    gaps = [gap for result in answered for gap in result.inter_token_seconds()]
    total = total_speculation(answered)
    return RunSummary(
        requests=len(run.results),
        failed=len(run.errors),
        seconds=run.seconds,
        output_tokens=tokens,
        output_tokens_per_second=tokens / run.seconds,
        user_tokens_per_second=_percentile(speeds, 50),
        ttft_p50=_percentile(first, 50),
        ttft_p95=_percentile(first, 95),
        inter_token_p50=_percentile(gaps, 50),
        inter_token_p95=_percentile(gaps, 95),
        accept_length=mean_accept_length(total.emitted, total.rounds) if total.rounds else None,
        verified_per_round=1 + total.drafted / total.rounds if total.rounds else None,
        speculation=total,
    )


def total_speculation(results: Iterable[Result]) -> Speculation:
    """What speculation did for all of `results` together."""
    return sum((result.speculation for result in results), Speculation())


def accept_by_domain(results: Sequence[Result]) -> dict[str, Interval]:
    """Accept length of each domain with an interval over its prompts, and their plain mean under the key `mean`.

    Answers to one prompt are added up first: repetitions of a greedy answer are no further evidence. Requests that
    ended with their first token had no round and are left out; a domain without any round is missing.
    """
    groups: dict[str, dict[str, Speculation]] = {}
    for result in results:
        if result.error is None and result.speculation.rounds:
            group = groups.setdefault(result.domain, {})
            group[result.id] = group.get(result.id, Speculation()) + result.speculation
    lengths = {
        domain: accept_length([one.emitted for one in group.values()], [one.rounds for one in group.values()])
        for domain, group in groups.items()
    }
    if lengths:
        lengths["mean"] = _mean_of_independent(list(lengths.values()))
    return lengths


def _mean_of_independent(parts: Sequence[Interval]) -> Interval:
    """Mean of independent estimates; the half-widths add in quadrature."""
    count = len(parts)
    value = sum(part.value for part in parts) / count
    below = sum((part.value - part.low) ** 2 for part in parts) ** 0.5 / count
    above = sum((part.high - part.value) ** 2 for part in parts) ** 0.5 / count
    return Interval(value, value - below, value + above)


def _percentile(samples: Sequence[float], percent: float) -> float | None:
    return percentile(samples, percent) if samples else None
