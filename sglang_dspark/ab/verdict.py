"""The result in a few sentences: what a reader should take away, and what stands against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_dspark.ab.compare import ALL, THROUGHPUT, USER_SPEED
from sglang_dspark.evaluate.statistics import Interval


def verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """`headline` (the ratio at equal user speed), `sentences` after it, `warnings`, and `conclusive`.

    Args:
        found: the results so far (`results.collect`).
    """
    candidate, baseline = found["question"]["candidate"], found["question"]["baseline"]
    warnings = [f"{arm['name']}: {text}" for arm in found["arms"] for text in arm["health"]["warnings"]]
    measured = [arm["name"] for arm in found["arms"] if arm["status"] == "measured"]
    if found["repetitions"] < 2 or len(measured) < 2 or candidate == baseline:
        what = "one arm" if len(measured) < 2 else f"{found['repetitions']} repetition(s)"
        return {
            "headline": f"No verdict: {what} measured, two are needed.",
            "sentences": [],
            "warnings": warnings,
            "conclusive": False,
        }
    sentences = [*_headlines(found, candidate, baseline), *_overall(found, candidate, baseline)]
    sentences += _twins(found)
    sentences += [_on_or_above(found, candidate, other) for other in _compared(found)]
    sentences += _outputs(found)
    return {
        "headline": sentences[0] if sentences else "No load has figures of both arms.",
        "sentences": sentences[1:],
        "warnings": warnings,
        "conclusive": bool(sentences),
    }


def phrase(row: Mapping[str, Any]) -> str:
    """One comparison along the frontier, in words."""
    arm, baseline, at = row["arm"], row["baseline"], row["at"]
    where = f"At {at:.3g} tok/s per user" if row["what"] == "throughput" else f"At {at:.3g} tok/s per device"
    what = "throughput" if row["what"] == "throughput" else "speed per user"
    if row["status"] == "out of reach":
        return f"{where}: out of reach for {' and '.join(row['who'])}."
    if row["ratio"] is None:
        return f"{where}, {arm} has {row['value']:.2f} x the {what} of {baseline}; at the edge of reach, no interval."
    ratio = Interval(**row["ratio"])
    if 1.0 in ratio:
        return f"{where}, the {what} of {arm} is within noise of {baseline}'s ({ratio.format()} x)."
    if row["at_least"]:
        return f"{where}, {arm} has at least {ratio.format()} x the {what} of {baseline}: more load was not measured."
    return f"{where}, {arm} has {ratio.format()} x the {what} of {baseline}."


def _headlines(found: Mapping[str, Any], candidate: str, baseline: str) -> list[str]:
    """For each temperature the middle SLO point; the highest temperature, where speculation is hardest, first."""
    lines = []
    for temperature, curves in sorted(found["frontier"].items(), key=lambda entry: -float(entry[0])):
        rows = [row for row in curves["slo"] if row["baseline"] == baseline]
        if rows:
            lines.append(f"T = {temperature}: {phrase(rows[len(rows) // 2])}")
        elif baseline in curves["curves"]:
            lines.append(f"T = {temperature}: {candidate} and {baseline} share no speed per user that both reach.")
    return lines


def _overall(found: Mapping[str, Any], candidate: str, baseline: str) -> list[str]:
    lines = []
    for row in found["comparisons"]:
        if {row["arm"], row["baseline"]} != {candidate, baseline} or row["metric"] not in (THROUGHPUT, USER_SPEED):
            continue
        if row["scenario"].startswith(ALL):
            lines.append(_sentence(row, f"over all loads at T = {row['scenario'].rpartition(':T')[2]}"))
    return lines


def _sentence(row: Mapping[str, Any], where: str) -> str:
    what = "throughput" if row["metric"] == THROUGHPUT else "speed per user"
    ratio = Interval(**row["ratio"]).format()
    if row["call"] == "within noise":
        return f"The {what} of {row['arm']} is within noise of {row['baseline']}'s {where}: {ratio} x."
    doubt = ", which among so many comparisons may be chance" if row["call"] == "uncertain" else ""
    return f"{row['arm']} has {ratio} x the {what} of {row['baseline']} {where}{doubt}."


def _twins(found: Mapping[str, Any]) -> list[str]:
    """Arms with the same flags: whether the experiment tells them apart, which it must not."""
    flags = {arm["name"]: arm["flags"] for arm in found["arms"] if arm["status"] == "measured"}
    lines = []
    for first in flags:
        again = f"{first}-again"
        if flags.get(again) != flags[first]:
            continue
        rows = [row for row in found["comparisons"] if {row["arm"], row["baseline"]} == {first, again}]
        different = [row for row in rows if row["call"] in ("higher", "lower")]
        lines.append(
            f"A/A: {first} and {again} are the same arm, and {len(different)} of {len(rows)} comparisons call them "
            f"different{': do not trust smaller differences than these' if different else ', as it must be'}."
        )
    return lines


def _compared(found: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for curves in found["frontier"].values():
        names |= dict.fromkeys(curves["on_or_above"])
    return list(names)


def _on_or_above(found: Mapping[str, Any], candidate: str, other: str) -> str:
    parts = []
    for temperature, curves in found["frontier"].items():
        state = curves["on_or_above"].get(other)
        if state is None:
            continue
        speeds = ", ".join(f"{speed:.3g}" for speed in state["below"])
        parts.append(f"T = {temperature}: " + ("yes" if state["holds"] else f"no, not at {speeds} tok/s per user"))
    return f"{candidate}'s frontier lies on or above {other}'s within the noise? {'; '.join(parts)}."


def _outputs(found: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = found["outputs"]
    if not rows:
        return []
    compared, identical = sum(row["compared"] for row in rows), sum(row["identical"] for row in rows)
    return [
        f"Greedy answers: {identical} of {compared} are token for token those of {rows[0]['reference']}"
        f"{'' if identical == compared else ' (the table says how far the others agree)'}."
    ]
