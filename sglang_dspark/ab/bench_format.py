"""A cell in the fields of `sglang.bench_serving`, so that tools which read its output files read these too."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_dspark.ab.measure import Measured
from sglang_dspark.ab.traffic import Scenario


def bench_record(arm: str, scenario: Scenario, measured: Measured, dataset: str) -> dict[str, Any]:
    """One line of a `bench_serving` output file; times in milliseconds. `tag` holds the arm."""
    run, figures = measured.run, measured.figures
    answered = run.answered
    times = {
        "e2e_latency": [result.seconds for result in answered if result.finish_reason],
        "ttft": [result.ttft for result in answered if result.arrivals],
        "tpot": [1 / speed for result in answered if (speed := result.decode_tokens_per_second())],
        "itl": [gap for result in answered for gap in result.inter_token_seconds()],
    }
    prompt_tokens = sum(result.prompt_tokens for result in answered)
    record: dict[str, Any] = {
        "tag": arm,
        "backend": "sglang",
        "dataset_name": dataset,
        "request_rate": scenario.load
        if scenario.kind == "poisson"
        else "trace"
        if scenario.kind == "recorded"
        else "inf",
        "max_concurrency": scenario.users if scenario.kind not in ("poisson", "recorded") else None,
        "duration": run.seconds,
        "completed": len(times["e2e_latency"]),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": figures["output_tokens"],
        "request_throughput": len(answered) / run.seconds,
        "input_throughput": prompt_tokens / run.seconds,
        "output_throughput": figures["output_tokens_per_second"],
        "total_throughput": (prompt_tokens + figures["output_tokens"]) / run.seconds,
        "concurrency": sum(times["e2e_latency"]) / run.seconds,
        "accept_length": figures["accept_length"],
    }
    for name, samples in times.items():
        record |= {f"{stat}_{name}_ms": value * 1e3 for stat, value in _statistics(samples).items()}
    return record


def _statistics(samples: list[float]) -> dict[str, float]:
    values = np.array(samples or [0.0])
    p90, p95, p99 = np.percentile(values, [90, 95, 99])
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "std": float(values.std()),
        "p90": float(p90),
        "p95": float(p95),
        "p99": float(p99),
    }
