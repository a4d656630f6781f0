"""Accept length per domain: how many tokens a verification round yields on a set of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_dspark.errors import DSparkError
from sglang_dspark.evaluate.load import Request, Result, Speculation, run_load
from sglang_dspark.evaluate.prompts import Prompt, apply_chat
from sglang_dspark.evaluate.statistics import Interval
from sglang_dspark.evaluate.summary import accept_by_domain, total_speculation


class AcceptError(DSparkError, RuntimeError):
    """Requests failed, or nothing was drafted: there is no accept length to report."""


@dataclass(frozen=True)
class AcceptReport:
    """Accept lengths at one temperature; `by_domain["mean"]` is the plain mean of the domains."""

    temperature: float
    requests: int
    output_tokens: int
    speculation: Speculation
    by_domain: dict[str, Interval]

    def as_json(self) -> dict[str, Any]:
        """Ready for `json.dump`."""
        return asdict(self)


def measure_accept(
    base_url: str,
    prompts: Sequence[Prompt],
    tokenizer: Any,
    temperature: float,
    max_new_tokens: int,
    concurrency: int = 8,
    on_result: Callable[[Result], None] | None = None,
) -> AcceptReport:
    """Answer every prompt once and report tokens per round.

    Raises:
        AcceptError: a request failed, or not one draft token was verified.
    """
    sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    requests = [Request(p.id, p.domain, apply_chat(tokenizer, p.prompt), sampling) for p in prompts]
    run = run_load(base_url, requests, concurrency, on_result=on_result)
    if run.errors:
        first = run.errors[0]
        raise AcceptError(f"{len(run.errors)} of {len(requests)} requests failed; the first, {first.id}: {first.error}")
    total = total_speculation(run.results)
    if not total.drafted:
        raise AcceptError(f"inconclusive: {base_url} verified no draft token; is speculation on?")
    tokens = sum(len(result.output_ids) for result in run.results)
    return AcceptReport(temperature, len(requests), tokens, total, accept_by_domain(run.results))
