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
        requests, failed: requests sent, and those that ended in an error. Failed ones are in no other figure.
        seconds: first send to last answer.
        output_tokens: of all answered requests.
        output_tokens_per_second: `output_tokens / seconds`.
        busy_tokens_per_second: the same up to when the first user had nothing left to send: without the tail, in which
            fewer and fewer requests run.
        user_tokens_per_second, user_tokens_per_second_p5: median over requests of the speed after the first token, and
            the speed that 95 % of them exceed.
        ttft_*, tpot_*, inter_token_*, latency_*: seconds to the first token; a token after the first, over requests;
            between tokens, over all of them; to the whole answer. 50th, 95th and 99th percentile.
        accept_length: tokens per request and verification round, bonus counted (`mean_accept_length`).
        verified_per_round: tokens verified per request and round, anchor counted.
        verified_per_emitted: tokens verified, anchors counted, for each token that the rounds emitted.
        budget: draft tokens verified per request and round.
        speculation: the sums behind the last four.
    """

    requests: int
    failed: int
    seconds: float
    output_tokens: int
    output_tokens_per_second: float
    busy_tokens_per_second: float
    user_tokens_per_second: float | None
    user_tokens_per_second_p5: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p95: float | None
    tpot_p99: float | None
    inter_token_p50: float | None
    inter_token_p95: float | None
    inter_token_p99: float | None
    latency_p50: float | None
    latency_p95: float | None
    latency_p99: float | None
    accept_length: float | None
    verified_per_round: float | None
    verified_per_emitted: float | None
    budget: float | None
    speculation: Speculation

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, ready for `json.dump`."""
        return asdict(self)


def summarise(run: LoadRun) -> RunSummary:
    """Reduce one run to its figures."""
    answered = run.answered
    tokens = sum(len(result.output_ids) for result in answered)
    speeds = [speed for result in answered if (speed := result.decode_tokens_per_second()) is not None]
    total = total_speculation(answered)
    rounds = total.rounds
    return RunSummary(
        requests=len(run.results),
        failed=len(run.errors),
        seconds=run.seconds,
        output_tokens=tokens,
        output_tokens_per_second=tokens / run.seconds,
        busy_tokens_per_second=busy_tokens_per_second(answered),
        user_tokens_per_second=_percentile(speeds, 50),
        user_tokens_per_second_p5=_percentile(speeds, 5),
        **percentiles("ttft", [result.ttft for result in answered if result.arrivals]),
        **percentiles("tpot", [1 / speed for speed in speeds]),
        **percentiles("inter_token", [gap for result in answered for gap in result.inter_token_seconds()]),
        **percentiles("latency", [result.seconds for result in answered if result.finish_reason]),
        accept_length=mean_accept_length(total.emitted, rounds) if rounds else None,
        verified_per_round=1 + total.drafted / rounds if rounds else None,
        verified_per_emitted=(rounds + total.drafted) / total.emitted if rounds and total.emitted else None,
        budget=total.drafted / rounds if rounds else None,
        speculation=total,
    )


def busy_tokens_per_second(answered: Sequence[Result]) -> float:
    """Output tokens that arrived before the first user had nothing left to send, by the time until then; 0 if none."""
    if not answered:
        return 0.0
    start, last_sent = min(r.sent_at for r in answered), max(r.sent_at for r in answered)
    end = min(ends for r in answered if (ends := r.sent_at + r.seconds) >= last_sent)
    return sum(_tokens_until(r, end) for r in answered) / (end - start) if end > start else 0.0


def _tokens_until(result: Result, end: float) -> int:
    return max((count for seconds, count in result.arrivals if result.sent_at + seconds <= end), default=0)


def percentiles(name: str, samples: Sequence[float]) -> dict[str, Any]:
    """The 50th, 95th and 99th percentile as `<name>_p50` and so on; None without samples."""
    return {f"{name}_p{percent}": _percentile(samples, percent) for percent in (50, 95, 99)}


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
