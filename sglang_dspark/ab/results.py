"""All that an experiment found, as one JSON-ready mapping (`schema.json`), from which every report is made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from sglang_dspark.ab import compare
from sglang_dspark.ab.catalogue import Chosen
from sglang_dspark.ab.frontier import frontier
from sglang_dspark.ab.health import health
from sglang_dspark.ab.store import Store
from sglang_dspark.ab.traffic import Scenario
from sglang_dspark.ab.verdict import verdict

FORMAT, VERSION = "dspark-ab", 1


@dataclass(frozen=True)
class Question:
    """What the experiment is read for.

    Attributes:
        candidate: the arm that is judged.
        baseline: the arm it is judged against first.
        slo: tok/s per user to compare throughput at; empty: chosen inside the range both reach.
        devices: that each arm runs on.
    """

    candidate: str
    baseline: str
    slo: tuple[float, ...] = ()
    devices: int = 1


def question_for(
    arms: Sequence[str], candidate: str | None, baseline: str | None, slo: Sequence[float], devices: int
) -> Question:
    """Defaults: DSpark, else the last arm, is judged against MTP-1, else against the first other arm.

    Args:
        arms: that can run, in order.
        candidate, baseline, slo, devices: as given, None or empty for the defaults.
    """
    chosen = candidate or ("dspark" if "dspark" in arms else arms[-1])
    others = [arm for arm in arms if arm != chosen] or [chosen]
    usual = next((arm for arm in ("mtp-best", "mtp-1") if arm in others), others[0])
    return Question(chosen, baseline or usual, tuple(slo), devices)


def collect(
    store: Store,
    arms: Sequence[Chosen],
    scenarios: Sequence[Scenario],
    question: Question,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything, from the cells measured so far.

    Args:
        store: cells and notes.
        arms, scenarios: of the experiment.
        question: what it is read for.
        about: settings, machine, commands and times, put in as they are.
    """
    stopped: dict[str, str] = store.notes.get("stopped", {})
    table = compare.Table([cell for cell in store.cells if cell.arm not in stopped], question.devices)
    ran = [chosen.name for chosen in arms if chosen.name in table.arms]
    question = _that_ran(question, ran)
    keys = {scenario.key for scenario in scenarios if scenario.key in {*table.scenarios, *table.answers}}
    present = [scenario for scenario in scenarios if scenario.key in keys]
    void = {arm: sorted({s.temperature for s in present if s.temperature > 0}) for arm in ran
            if compare.ignores_temperature(table, arm)}  # fmt: skip
    found: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "question": asdict(question),
        "arms": [_arm(chosen, store, stopped, void) for chosen in arms],
        "scenarios": [{**asdict(s), "key": s.key, "label": s.label} for s in present],
        "cells": [
            {"arm": arm, "scenario": s.key, **compare.medians(table, arm, s.key)} for s in present for arm in ran
        ],
        "comparisons": _valid(compare.compare_all(table, question.candidate), void),
        "frontier": {
            f"{temperature:g}": curves
            for temperature in sorted({s.temperature for s in present})
            if (curves := _frontier(table, present, temperature, ran, void, question)) is not None
        },
        "acceptance": compare.acceptance(table) if about.get("fit_for_acceptance", True) else {},
        "outputs": compare.outputs(table, _reference(ran, question)) if ran else [],
        "plan": store.notes.get("plan"),
        "layout": store.notes.get("layout"),
        "ended_early": store.notes.get("ended_early"),
        "searched": store.notes.get("searched_speeds", {}),
        "repetitions": len(table.repetitions),
        "about": dict(about),
    }
    found["verdict"] = verdict(found)
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def schema() -> dict[str, Any]:
    """The JSON schema of `collect`'s result."""
    text = (resources.files("sglang_dspark") / "ab" / "schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _that_ran(question: Question, ran: Sequence[str]) -> Question:
    """The question, with arms that have figures; the schema and the verdict say which were asked for."""
    if not ran:
        return question
    candidate = question.candidate if question.candidate in ran else ran[-1]
    others = [arm for arm in ran if arm != candidate] or [candidate]
    baseline = question.baseline if question.baseline in others else others[0]
    return Question(candidate, baseline, question.slo, question.devices)


def _reference(ran: Sequence[str], question: Question) -> str:
    return "plain" if "plain" in ran else question.baseline


def _arm(
    chosen: Chosen, store: Store, stopped: Mapping[str, str], void: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    name = chosen.name
    failed: dict[str, str] = store.notes.get("failed_starts", {})
    measured = any(cell.arm == name for cell in store.cells)
    not_run = chosen.not_run or (f"did not start: {failed[name]}" if name in failed else None)
    if not_run is None and not measured:
        not_run = "no cell of it was measured"
    state = health(name, store.cells, store.notes.get("starts", {}), stopped.get(name))
    if name in void:
        shown = ", ".join(f"{temperature:g}" for temperature in void[name])
        state["warnings"].append(
            f"its answers at T = {shown} are its greedy ones: it does not sample, so nothing is concluded from its "
            "speed there"
        )
    status = "not run" if not_run else "given up" if name in stopped else "measured"
    return {
        "name": name,
        "description": chosen.description,
        "status": status,
        "reason": not_run or stopped.get(name),
        "void_temperatures": list(void.get(name, ())),
        "health": state,
        "server": store.notes.get("about", {}).get(name, {}),
        "flags": list(chosen.arm.flags) if chosen.arm is not None else [],
    }


def _valid(rows: Sequence[dict[str, Any]], void: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Comparisons without those in which an arm does not sample as it was asked to."""

    def is_void(row: Mapping[str, Any]) -> bool:
        temperature = float(row["scenario"].rpartition(":T")[2])
        return any(temperature in void.get(arm, ()) for arm in (row["arm"], row["baseline"]))

    return [row for row in rows if not is_void(row)]


def _frontier(
    table: compare.Table,
    scenarios: Sequence[Scenario],
    temperature: float,
    ran: Sequence[str],
    void: Mapping[str, Sequence[float]],
    question: Question,
) -> dict[str, Any] | None:
    closed = sorted((s.load, s.key) for s in scenarios if s.kind == "closed" and s.temperature == temperature)
    arms = [
        arm for arm in ran
        if temperature not in void.get(arm, ())
        and all(table.pairs(arm, arm, key, compare.THROUGHPUT) for _, key in closed)
    ]  # fmt: skip
    if not closed or not arms:
        return None
    return frontier(
        table, [(key, load) for load, key in closed], arms, question.candidate, question.slo, question.baseline
    )
