"""The report as Markdown, short enough for a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_dspark.ab.compare import ALL, THROUGHPUT, USER_SPEED
from sglang_dspark.ab.verdict import phrase
from sglang_dspark.evaluate.statistics import Interval

_COLUMNS = (
    ("busy_tokens_per_second", "tok/s", 1, 1.0),
    ("user_tokens_per_second", "per user", 1, 1.0),
    ("user_tokens_per_second_p5", "p5", 1, 1.0),
    ("ttft_p50", "TTFT p50 ms", 0, 1e3),
    ("ttft_p99", "p99", 0, 1e3),
    ("tpot_p50", "TPOT p50 ms", 1, 1e3),
    ("inter_token_p99", "ITL p99 ms", 1, 1e3),
    ("accept_length", "accept length", 2, 1.0),
    ("verified_per_emitted", "verified / emitted", 2, 1.0),
    ("budget", "budget", 2, 1.0),
)


def markdown(found: Mapping[str, Any]) -> str:
    """Verdict, frontier, one table of all loads, what was not run, how to reproduce.

    Args:
        found: the results (`results.collect`).
    """
    verdict, about, question = found["verdict"], found["about"], found["question"]
    lines = [f"## {question['candidate']} against {question['baseline']}", "", f"**{verdict['headline']}**", ""]
    lines += [f"- {sentence}" for sentence in verdict["sentences"]]
    lines += [f"- ⚠ {warning}" for warning in verdict["warnings"]]
    if about.get("what"):
        lines += ["", about["what"]]
    lines += ["", "### Along the frontier", "", *_frontier(found)]
    lines += ["", "### All loads", "", *_loads(found)]
    lines += [*_acceptance(found), *_not_run(found)]
    notes = [
        f"{found['repetitions']} repetitions, servers {found['layout']}, {about.get('dataset')}. Medians over "
        "repetitions; ratios are geometric means over pairs of repetitions with a 95 % paired bootstrap interval "
        "(Student's quantile). (=): within noise. (?): the interval excludes 1, but among all comparisons of the two "
        "arms that may be chance (Holm).",
        f"`{about.get('command')}`",
    ]
    if found["ended_early"]:
        notes.insert(0, f"Ended early: {found['ended_early']}.")
    if not about.get("fit_for_acceptance", True):
        notes.insert(0, "Random tokens: unfit for anything about acceptance, and so for any ratio between drafts.")
    for note in notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _frontier(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for temperature, curves in found["frontier"].items():
        lines += [f"- T = {temperature}: {phrase(row)}" for row in (*curves["slo"], *curves["matched"])]
    return lines or ["No temperature has complete curves."]


def _loads(found: Mapping[str, Any]) -> list[str]:
    baseline = found["question"]["baseline"]
    titles = ["load", "arm", *(title for _, title, _, _ in _COLUMNS), f"tok/s / {baseline}", f"per user / {baseline}"]
    lines = [f"| {' | '.join(titles)} |", "|:--|:--|" + "--:|" * len(_COLUMNS) + ":--|:--|"]
    ratios = ratios_to(found, baseline)
    for scenario in found["scenarios"]:
        for cell in found["cells"]:
            if cell["scenario"] != scenario["key"] or not cell["repetitions"]:
                continue
            failed = f" ({cell['failed']} failed)" if cell["failed"] else ""
            values = [_number(cell.get(name), digits, scale) for name, _, digits, scale in _COLUMNS]
            both = [_ratio(ratios.get((cell["arm"], scenario["key"], metric))) for metric in (THROUGHPUT, USER_SPEED)]
            lines.append(f"| {' | '.join([scenario['label'], cell['arm'] + failed, *values, *both])} |")
    return lines


def ratios_to(found: Mapping[str, Any], baseline: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Comparisons by (arm, scenario, metric) with `baseline` as denominator, turned round where it is not."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in found["comparisons"]:
        if row["scenario"].startswith(ALL):
            continue
        if row["baseline"] == baseline:
            rows[row["arm"], row["scenario"], row["metric"]] = row
        elif row["arm"] == baseline:
            rows[row["baseline"], row["scenario"], row["metric"]] = _turned(row)
    return rows


def _turned(row: Mapping[str, Any]) -> dict[str, Any]:
    ratio = row["ratio"]
    turned = {"value": 1 / ratio["value"], "low": 1 / ratio["high"], "high": 1 / ratio["low"]}
    calls = {"higher": "lower", "lower": "higher"}
    return {
        **row,
        "arm": row["baseline"],
        "baseline": row["arm"],
        "ratio": turned,
        "call": calls.get(row["call"], row["call"]),
    }


def _acceptance(found: Mapping[str, Any]) -> list[str]:
    if not found["acceptance"]:
        return []
    lines = ["", "### Accept length", ""]
    for arm, temperatures in found["acceptance"].items():
        for temperature, domains in temperatures.items():
            shown = ", ".join(f"{name} {Interval(**length).format()}" for name, length in domains.items())
            lines.append(f"- {arm}, T = {temperature}: {shown}")
    return lines


def _not_run(found: Mapping[str, Any]) -> list[str]:
    rows = [arm for arm in found["arms"] if arm["status"] != "measured"]
    return (
        ["", "### Not measured", "", *(f"- {arm['name']} ({arm['status']}): {arm['reason']}" for arm in rows)]
        if rows
        else []
    )


def _number(value: float | None, digits: int, scale: float) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def _ratio(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return Interval(**row["ratio"]).format() + {"within noise": " (=)", "uncertain": " (?)"}.get(row["call"], "")
