"""Is greedy speculative output token for token what the plain engine gives?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.endpoints import flush_cache
from sglang_dspark.evaluate.load import Request, Result, run_load
from sglang_dspark.evaluate.prompts import Prompt, apply_chat
from sglang_dspark.evaluate.summary import total_speculation

# Two candidates this close in the plain engine's logits can swap with the shape of the batch that computed them.
TIE_TOLERANCE = 1e-3
TIE_SHARE = 0.01
_CANDIDATES = 5

Verdict = Literal["equal", "different", "inconclusive"]


class EqualityError(DSparkError, RuntimeError):
    """A request of the check failed, so there is nothing to compare."""


@dataclass(frozen=True)
class Difference:
    """The first position at which an output leaves the plain engine's.

    Attributes:
        mode: how the output was made, such as "batched, warm".
        position: index into the output tokens.
        expected, got: the two tokens; None where that output had ended.
        gap: how far apart the plain engine's log-probabilities of the two are; None if it had `got` far down.
    """

    id: str
    mode: str
    position: int
    expected: int | None
    got: int | None
    gap: float | None

    @property
    def tie(self) -> bool:
        return self.gap is not None and self.gap <= TIE_TOLERANCE


@dataclass
class EqualityReport:
    """Outputs compared, those that differ, and how much was drafted while doing so."""

    compared: int = 0
    drafted: int = 0
    accepted: int = 0
    output_tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def ties(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.tie]

    @property
    def verdict(self) -> Verdict:
        """`inconclusive` without a single draft token: plain decoding equals itself.

        Floating-point ties may make up 1 % of the comparisons (one tie is let pass in a small run).
        """
        if not self.drafted:
            return "inconclusive"
        if len(self.ties) < len(self.differences) or len(self.ties) > max(1, TIE_SHARE * self.compared):
            return "different"
        return "equal"

    def add(self, mode: str, expected: Sequence[Result], got: Sequence[Result]) -> None:
        """Compare one pass over the prompts with the plain engine's.

        Raises:
            EqualityError: a request failed.
        """
        for plain, other in zip(expected, got, strict=True):
            for result in (plain, other):
                if result.error is not None:
                    raise EqualityError(f"{mode}: request {result.id} failed: {result.error}")
            difference = first_difference(mode, plain, other)
            if difference is not None:
                self.differences.append(difference)
        total = total_speculation(got)
        self.compared += len(got)
        self.drafted += total.drafted
        self.accepted += total.accepted
        self.output_tokens += sum(len(result.output_ids) for result in got)

    def as_json(self) -> dict[str, Any]:
        """Ready for `json.dump`."""
        record = asdict(self)
        record["differences"] = [asdict(one) | {"tie": one.tie} for one in self.differences]
        return record | {"ties": len(self.ties), "verdict": self.verdict}


def first_difference(mode: str, plain: Result, other: Result) -> Difference | None:
    """Where `other` leaves `plain`, which was generated with its candidates' log-probabilities; None if nowhere."""
    if plain.output_ids == other.output_ids:
        return None
    pairs = zip(plain.output_ids, other.output_ids, strict=False)
    shorter = min(len(plain.output_ids), len(other.output_ids))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    expected, got = (ids[position] if position < len(ids) else None for ids in (plain.output_ids, other.output_ids))
    gap = None
    if expected is not None and got is not None:
        candidates = {token: value for value, token, *_ in plain.meta["output_top_logprobs"][position]}
        if expected in candidates and got in candidates:
            gap = abs(candidates[expected] - candidates[got])
    return Difference(plain.id, mode, position, expected, got, gap)


def greedy_requests(prompts: Sequence[Prompt], tokenizer: Any, max_new_tokens: int) -> list[Request]:
    """One greedy request a prompt, its chat template applied."""
    sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens}
    return [
        Request(prompt.id, prompt.domain, apply_chat(tokenizer, prompt.prompt), sampling, stream=False)
        for prompt in prompts
    ]


def plain_reference(
    base_url: str, requests: Sequence[Request], on_result: Callable[[Result], None] | None = None
) -> list[Result]:
    """The plain engine's answers, one request at a time, with the best candidates at each position."""
    with_candidates = [replace(request, top_logprobs=_CANDIDATES) for request in requests]
    return run_load(base_url, with_candidates, concurrency=1, on_result=on_result).results


def check_equality(
    base_url: str,
    requests: Sequence[Request],
    reference: Sequence[Result],
    batch: int = 16,
    batched_only: bool = False,
    on_result: Callable[[Result], None] | None = None,
) -> EqualityReport:
    """Compare a server with the plain engine, one request at a time and batched, with a cold and a warm prefix cache.

    Args:
        base_url: the speculating server.
        requests: from `greedy_requests`.
        reference: `plain_reference` of the same requests.
        batch: requests in flight in the batched passes.
        batched_only: the batched pass with a cold cache alone.
        on_result: called after each answer.
    """
    report = EqualityReport()
    if batched_only:
        flush_cache(base_url)
        results = run_load(base_url, requests, batch, on_result=on_result).results
        report.add("batched, cold", reference, results)
        return report
    alone: list[Result] = []
    for request in requests:
        flush_cache(base_url)
        alone += run_load(base_url, [request], 1, on_result=on_result).results
    report.add("one at a time, cold", reference, alone)

    flush_cache(base_url)
    passes = (("batched, cold", batch), ("batched, warm", batch), ("one at a time, warm", 1))
    for mode, concurrency in passes:
        report.add(mode, reference, run_load(base_url, requests, concurrency, on_result=on_result).results)
    return report
