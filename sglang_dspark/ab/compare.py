"""Arms against each other: medians, paired ratios with intervals, and which differences are more than noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from sglang_dspark.ab.store import Cell
from sglang_dspark.ab.traffic import ANSWERS
from sglang_dspark.evaluate.comparison import Comparison, paired_comparison
from sglang_dspark.evaluate.statistics import Interval, geometric_mean, holm
from sglang_dspark.evaluate.summary import accept_by_domain

# The two figures that the frontier is drawn from: claims are about these.
THROUGHPUT, USER_SPEED = "busy_tokens_per_second", "user_tokens_per_second"
METRICS = {THROUGHPUT: "output tok/s per device", USER_SPEED: "tok/s per user"}
ALPHA = 0.05
_COUNTS = ("requests", "failed", "output_tokens")
ALL = "all loads"


class Table:
    """Cells by arm, scenario and repetition, as far as they can be used: those without a figure are left out.

    Args:
        cells: all of the experiment.
        devices: that each arm runs on; throughput is divided by it.
    """

    def __init__(self, cells: Sequence[Cell], devices: int = 1) -> None:
        self.cells = list(cells)
        self._devices = devices
        self._by_place = {cell.place: cell for cell in cells}
        self.arms = list(dict.fromkeys(cell.arm for cell in cells))
        keys = dict.fromkeys(cell.scenario for cell in cells)
        self.scenarios = [key for key in keys if not key.startswith(f"{ANSWERS}:")]
        # Where no arm was asked for complete answers, those that any load completed stand in.
        self.answers = [key for key in keys if key.startswith(f"{ANSWERS}:")] or self.scenarios
        self.repetitions = sorted({cell.repetition for cell in cells})

    def of(self, arm: str, scenario: str) -> list[Cell]:
        """The arm's cells in the order of the repetitions."""
        found = (self._by_place.get((arm, scenario, repetition)) for repetition in self.repetitions)
        return [cell for cell in found if cell is not None]

    def value(self, arm: str, scenario: str, repetition: int, metric: str) -> float | None:
        """A figure of one cell; None where there is none, or where requests failed: they would have taken time."""
        cell = self._by_place.get((arm, scenario, repetition))
        if cell is None or cell.figures["failed"] or not cell.figures[metric]:
            return None
        figure = float(cell.figures[metric])
        return figure / self._devices if metric in (THROUGHPUT, "output_tokens_per_second") else figure

    def pairs(self, arm: str, other: str, scenario: str, metric: str) -> list[tuple[float, float]]:
        """Both arms' figures in each repetition that has both."""
        both = (
            (self.value(arm, scenario, r, metric), self.value(other, scenario, r, metric)) for r in self.repetitions
        )
        return [(a, b) for a, b in both if a is not None and b is not None]


def medians(table: Table, arm: str, scenario: str) -> dict[str, Any]:
    """Every figure of an arm under a scenario, the median over repetitions; counts are added up."""
    cells = table.of(arm, scenario)
    found: dict[str, Any] = {"repetitions": len(cells)}
    for name in cells[0].figures if cells else ():
        if name == "speculation":
            continue
        values = [float(cell.figures[name]) for cell in cells if cell.figures[name] is not None]
        if name in _COUNTS:
            found[name] = int(sum(values))
        else:
            clean = [v for r in table.repetitions if (v := table.value(arm, scenario, r, name)) is not None]
            found[name] = median(clean) if clean else None
    return found


def compare_all(table: Table, candidate: str | None) -> list[dict[str, Any]]:
    """Every pair of arms under every scenario and over all loads together, on both metrics.

    The candidate is the numerator of its pairs; otherwise the first arm is. Within a pair of arms the p-values of all
    scenarios and both metrics are adjusted together (Holm), so that two equal arms are called different in 5 % of
    experiments, however many loads there are.
    """
    rows = []
    for first, second in combinations(table.arms, 2):
        above, below = (second, first) if second == candidate else (first, second)
        rows += _pair(table, above, below)
    return rows


def _pair(table: Table, above: str, below: str) -> list[dict[str, Any]]:
    found: list[tuple[str, str, Comparison]] = []
    for metric in METRICS:
        for scenario in table.scenarios:
            pairs = table.pairs(above, below, scenario, metric)
            if len(pairs) >= 2:
                found.append((scenario, metric, paired_comparison(*zip(*pairs, strict=True))))
        for temperature in sorted({_temperature(scenario) for scenario in table.scenarios}):
            if (over_all := _over_loads(table, above, below, metric, temperature)) is not None:
                found.append((f"{ALL}:T{temperature}", metric, over_all))
    adjusted = holm([comparison.p for _, _, comparison in found]) if found else []
    return [
        {
            "arm": above,
            "baseline": below,
            "scenario": scenario,
            "metric": metric,
            "ratio": asdict(comparison.ratio),
            "p": comparison.p,
            "p_adjusted": p,
            "call": call(comparison.ratio, p),
        }
        for (scenario, metric, comparison), p in zip(found, adjusted, strict=True)
    ]


def call(ratio: Interval, p_adjusted: float) -> str:
    """`higher` or `lower`; `within noise`: the interval holds 1; `uncertain`: it does not, which among so many
    comparisons happens by chance."""
    if 1.0 in ratio:
        return "within noise"
    return "uncertain" if p_adjusted >= ALPHA else "higher" if ratio.value > 1 else "lower"


def _temperature(scenario: str) -> str:
    return scenario.rpartition(":T")[2]


def _over_loads(table: Table, above: str, below: str, metric: str, temperature: str) -> Comparison | None:
    """The geometric mean over loads of each repetition, compared; where there are two loads or more."""
    scenarios = [s for s in table.scenarios if _temperature(s) == temperature and table.pairs(above, below, s, metric)]
    if len(scenarios) < 2:
        return None
    tops, bottoms = [], []
    for repetition in table.repetitions:
        mine = [table.value(above, s, repetition, metric) for s in scenarios]
        theirs = [table.value(below, s, repetition, metric) for s in scenarios]
        if all(v is not None for v in (*mine, *theirs)):
            tops.append(geometric_mean([v for v in mine if v is not None]))
            bottoms.append(geometric_mean([v for v in theirs if v is not None]))
    return paired_comparison(tops, bottoms) if len(tops) >= 2 else None


def acceptance(table: Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Accept length by arm, temperature and domain, with intervals over prompts; arms without rounds are missing."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for arm in table.arms:
        for temperature in dict.fromkeys(_temperature(scenario) for scenario in table.answers):
            cells = [
                cell
                for cell in table.cells
                if cell.arm == arm and cell.scenario in table.answers and _temperature(cell.scenario) == temperature
            ]
            lengths = accept_by_domain([result for cell in cells for result in cell.results()])
            if lengths:
                found.setdefault(arm, {})[temperature] = {name: asdict(length) for name, length in lengths.items()}
    return found


def outputs(table: Table, reference: str) -> list[dict[str, Any]]:
    """How far each arm's greedy answers are those of the reference, by scenario at T = 0.

    `identical` of `compared` answers are the same tokens; `common` is the mean share of the reference's answer up to
    the first difference. Batches of another shape round differently, so that a near-tie may fall the other way.
    """
    rows = []
    for scenario in table.answers:
        if float(_temperature(scenario)) != 0:
            continue
        theirs = {(c.repetition, a["id"]): a for c in table.of(reference, scenario) for a in c.answers if a["finish"]}
        for arm in table.arms:
            pairs = [
                (a, other)
                for cell in table.of(arm, scenario)
                for a in cell.answers
                if arm != reference and a["finish"] and (other := theirs.get((cell.repetition, a["id"]))) is not None
            ]
            if pairs:
                rows.append(
                    {
                        "arm": arm,
                        "reference": reference,
                        "scenario": scenario,
                        "compared": len(pairs),
                        "identical": sum(_same(mine, other) for mine, other in pairs),
                        "common": float(np.mean([_common(mine["ids"], other["ids"]) for mine, other in pairs])),
                    }
                )
    return rows


def _same(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Token for token; where one was cut at a lower limit, up to there (a user's first answer is cut)."""
    short, long = sorted((mine, other), key=lambda answer: len(answer["ids"]))
    cut = short["finish"] == "length" or len(short["ids"]) == len(long["ids"])
    return cut and list(long["ids"][: len(short["ids"])]) == list(short["ids"])


def _common(mine: Sequence[int], other: Sequence[int]) -> float:
    length = min(len(mine), len(other))
    same = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), length)
    return same / max(length, 1)


def ignores_temperature(table: Table, arm: str) -> bool:
    """Whether an arm's sampled answers are its greedy ones: it does not sample, and its speed at T > 0 means nothing.

    Answers of fewer than 16 tokens do not count. Honest sampling repeats a greedy answer of that length rarely.
    """
    greedy: dict[str, Sequence[int]] = {}
    sampled: list[tuple[str, Sequence[int]]] = []
    for cell in table.cells:
        if cell.arm != arm:
            continue
        for answer in cell.answers:
            if answer["error"] is not None or len(answer["ids"]) < 16:
                continue
            if float(_temperature(cell.scenario)) == 0:
                greedy.setdefault(answer["id"], answer["ids"])
            elif float(_temperature(cell.scenario)) >= 0.5:
                sampled.append((answer["id"], answer["ids"]))
    same = [ids[:16] == greedy[name][:16] for name, ids in sampled if name in greedy]
    return bool(same) and sum(same) > 0.8 * len(same)


def loads_without_pairs(table: Table, arm: str, arms: Mapping[str, Any]) -> list[str]:
    """Scenarios in which an arm that runs has no usable repetition."""
    return [s for s in table.scenarios if arm in arms and not table.pairs(arm, arm, s, THROUGHPUT)]
