"""One cell: the requests of a scenario sent to one server, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_dspark.ab.traffic import CLOSED_LOOP, Scenario, Shape, arrival_times
from sglang_dspark.evaluate.load import LoadRun, Request, Result, run_load
from sglang_dspark.evaluate.open_loop import run_open_loop
from sglang_dspark.evaluate.statistics import percentile
from sglang_dspark.evaluate.steady import SteadyRun, steady_load
from sglang_dspark.evaluate.summary import percentiles, summarise

# A user who has waited for so long, and so many times the usual time to a first token, has been forgotten.
_SILENT_SECONDS, _SILENT_TIMES = 2.0, 5.0


@dataclass(frozen=True)
class Measured:
    """Attributes:
    run: every request; those that the end of a steady run cut off have neither a finish reason nor an error.
    figures: of `RunSummary`.
    """

    run: LoadRun
    figures: dict[str, Any]


def measure(scenario: Scenario, requests: Sequence[Request], shape: Shape, base_url: str, seconds: float) -> Measured:
    """Send the requests as the scenario says.

    Args:
        scenario, requests, shape: as in `traffic`.
        base_url: of the server.
        seconds: that the users of a plain closed loop are kept busy; other traffic is a list that is answered to its
            end.
    """
    limit = shape.request_seconds
    if scenario.kind == "closed":
        return _steady(steady_load(base_url, requests, scenario.users, seconds, request_seconds=limit))
    if scenario.kind in CLOSED_LOOP:
        run = run_load(base_url, requests, scenario.users, request_seconds=limit)
    else:
        arrivals = arrival_times(scenario, shape, len(requests))
        run = run_open_loop(base_url, requests, arrivals, request_seconds=limit)
    return Measured(run, summarise(run).as_json())


def not_sent(count: int, error: str) -> Measured:
    """A cell whose server could not be asked at all."""
    run = LoadRun([Result(f"not-sent-{i}", "", 0.0, error=error) for i in range(count)], 1.0)
    return Measured(run, summarise(run).as_json())


def _steady(steady: SteadyRun) -> Measured:
    known = {id(result) for result in steady.results}
    results = [*steady.results, *(result for result in steady.failed if id(result) not in known)]
    # At the start all users ask at once, which is no load that lasts.
    later = [r.ttft for r in steady.results if r.arrivals and r.sent_at >= steady.begin]
    usual = percentile(later, 95) if later else steady.silent_seconds
    if not steady.failed and steady.silent_seconds > max(_SILENT_SECONDS, _SILENT_TIMES * usual):
        error = f"no complete answer within sight: nothing for {steady.silent_seconds:.1f} s"
        results.append(Result("silent", "", steady.begin, error=error))
    run = LoadRun(results, max(steady.end - steady.begin, 1e-9))
    figures = summarise(run).as_json()
    throughput = 0.0 if steady.failed else steady.tokens_per_second
    figures |= {"output_tokens_per_second": throughput, "busy_tokens_per_second": throughput}
    if later:
        figures |= percentiles("ttft", later)
    # The engine tells of rounds when an answer ends, which those with long rounds do first; every round is a piece of
    # the stream, of the others too.
    pieces = sum(max(len(result.arrivals) - 1, 0) for result in steady.results)
    if figures["accept_length"] is not None and pieces:
        tokens = sum(r.arrivals[-1][1] - r.arrivals[0][1] for r in steady.results if r.arrivals)
        figures["accept_length"] = tokens / pieces
        figures["verified_per_emitted"] = (1 + figures["budget"]) / figures["accept_length"]
    return Measured(run, figures)
