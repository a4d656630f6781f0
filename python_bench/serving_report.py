"""Tables of `bench_serving`: arms compared over paired repetitions, as JSON-ready figures and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from sglang_dspark.evaluate.accept import AcceptReport
from sglang_dspark.evaluate.load import Result
from sglang_dspark.evaluate.statistics import Interval, paired_ratio
from sglang_dspark.evaluate.summary import accept_by_domain

Outputs = dict[tuple[str, int, int], list[Result]]


def compare(
    arms: Sequence[str],
    about: dict[str, dict[str, Any]],
    cells: Sequence[dict[str, Any]],
    outputs: Outputs,
    same_answers: bool,
) -> dict[str, Any]:
    """Ratios to the first arm, agreement of the outputs, accept length per domain, and the verdict.

    Args:
        about: by arm; `speculates` says whether draft tokens are expected.
        cells: one record per arm, concurrency and repetition.
        outputs: the same runs' results.
        same_answers: the arms should have given the same answers, at T = 0 and to the end.
    """
    rows = []
    for concurrency in dict.fromkeys(cell["concurrency"] for cell in cells):
        for arm in arms:
            mine, base = _cells(cells, arm, concurrency), _cells(cells, arms[0], concurrency)
            rows.append(
                {
                    "arm": arm,
                    "concurrency": concurrency,
                    **{name: _median(mine, name) for name in _MEDIANS},
                    "failed": sum(cell["failed"] for cell in mine),
                    "throughput_ratio": _ratio(mine, base, "output_tokens_per_second"),
                    "user_speed_ratio": _ratio(mine, base, "user_tokens_per_second"),
                    "identical": _identical(outputs, arm, arms[0], concurrency) if same_answers else None,
                }
            )
    domains = {}
    for arm in arms:
        if about[arm]["speculates"]:
            results = [result for key, run in outputs.items() if key[0] == arm for result in run]
            domains[arm] = {name: vars(length) for name, length in accept_by_domain(results).items()}
    return {"rows": rows, "accept_by_domain": domains, "verdict": _verdict(arms, about, cells)}


_MEDIANS = (
    "output_tokens_per_second",
    "user_tokens_per_second",
    "ttft_p50",
    "inter_token_p50",
    "accept_length",
    "verified_per_round",
)


def markdown(payload: dict[str, Any]) -> str:
    """The table of a run, medians over its repetitions."""
    first = payload["rows"][0]["arm"]
    columns = (
        "users", "arm", "output tok/s", "tok/s per user", "TTFT ms", "accept length", "verified per round",
        f"throughput / {first}", f"user speed / {first}", "identical outputs",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|--:|:--|--:|--:|--:|--:|--:|:--|:--|--:|"]
    for row in payload["rows"]:
        same = row["identical"]
        lines.append(
            f"| {row['concurrency']} | {row['arm']}{_failures(row)} | {_number(row['output_tokens_per_second'], 1)} "
            f"| {_number(row['user_tokens_per_second'], 1)} | {_number(row['ttft_p50'], 0, 1e3)} "
            f"| {_number(row['accept_length'], 2)} | {_number(row['verified_per_round'], 2)} "
            f"| {_interval(row['throughput_ratio'])} | {_interval(row['user_speed_ratio'])} "
            f"| {'' if same is None else f'{same[0]} of {same[1]}'} |"
        )
    settings = payload["settings"]
    steady = settings.get("steady_seconds")
    kept = "" if steady is None else f"users kept busy for {steady:g} s, "
    note = (
        f"T = {settings['temperature'][0]:g}, {kept}at most {settings['max_new_tokens']} new tokens, "
        f"{settings['repetitions']} repetitions, servers {settings['layout']}. Medians over repetitions; ratios are "
        "geometric means over pairs of repetitions with a 95 % bootstrap interval. "
        f"Verdict: {payload['verdict']}."
    )
    lines += ["", note]
    for arm, lengths in payload["accept_by_domain"].items():
        shown = ", ".join(f"{name} {Interval(**length).format()}" for name, length in lengths.items())
        lines += ["", f"Accept length of {arm}: {shown or 'no round took place'}."]
    return "\n".join(lines)


def accept_table(reports: Sequence[AcceptReport]) -> str:
    """Accept length per domain and temperature."""
    domains = list(reports[0].by_domain)
    lines = [f"| T | {' | '.join(domains)} | requests | output tokens |", "|--:|" + "--:|" * (len(domains) + 2)]
    for report in reports:
        lengths = " | ".join(report.by_domain[domain].format() for domain in domains)
        lines.append(f"| {report.temperature:g} | {lengths} | {report.requests} | {report.output_tokens} |")
    return "\n".join(lines)


def _verdict(arms: Sequence[str], about: dict[str, dict[str, Any]], cells: Sequence[dict[str, Any]]) -> str:
    if any(cell["failed"] for cell in cells):
        return "failed requests"
    for arm in arms:
        drafted = sum(cell["speculation"]["drafted"] for cell in cells if cell["arm"] == arm)
        # Plain decoding under another name would agree with plain decoding.
        if about[arm]["speculates"] and not drafted:
            return "inconclusive"
    return "measured"


def _cells(cells: Sequence[dict[str, Any]], arm: str, concurrency: int) -> list[dict[str, Any]]:
    mine = [cell for cell in cells if cell["arm"] == arm and cell["concurrency"] == concurrency]
    return sorted(mine, key=lambda cell: cell["repetition"])


def _median(cells: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [cell[name] for cell in cells if cell[name] is not None]
    return median(values) if values else None


def _ratio(mine: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], name: str) -> dict[str, float] | None:
    pairs = [(a[name], b[name]) for a, b in zip(mine, base, strict=True) if a[name] and b[name]]
    if mine == base or not pairs:
        return None
    return vars(paired_ratio([a for a, _ in pairs], [b for _, b in pairs]))


def _identical(outputs: Outputs, arm: str, base: str, concurrency: int) -> tuple[int, int] | None:
    if arm == base:
        return None
    pairs = [
        (a.output_ids, b.output_ids)
        for (name, users, repetition), run in outputs.items()
        if name == arm and users == concurrency
        for a, b in zip(run, outputs[base, concurrency, repetition], strict=True)
        if a.error is None and b.error is None
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _failures(row: dict[str, Any]) -> str:
    return f" ({row['failed']} failed)" if row["failed"] else ""


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def _interval(ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else Interval(**ratio).format()
