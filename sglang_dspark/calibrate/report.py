"""What a calibration is worth: figures per class, domain and position, before and after, and the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_dspark.calibrate.fit import Curve, fit_class
from sglang_dspark.calibrate.metrics import Figures, Reliability, ece, figures, reliability
from sglang_dspark.calibrate.samples import Samples
from sglang_dspark.schedule.calibration import CLASSES, ClassParameters

GATE_ECE = 0.02
GATE_SAMPLES = 20_000
# With fewer rows than this a class is not fitted: the noise floor alone is then near 6 %.
_SMALLEST_CLASS = 500


@dataclass(frozen=True)
class Cell:
    """One position of a class, in one domain or over "all", raw and calibrated."""

    kind: str
    domain: str
    position: int
    before: Figures
    after: Figures


@dataclass(frozen=True)
class ClassReport:
    """One fitted class on held-out rows.

    Attributes:
        parameters: what was fitted.
        cells: over all domains first, then domain by domain.
        curves: (before, after) reliability of every position, over all domains.
        temperature_only: ECE per position with the plain temperatures, over all domains.
        cross_validated: ECE per position of each method on fitting rows that were left out.
    """

    parameters: ClassParameters
    cells: list[Cell]
    curves: list[tuple[Reliability, Reliability]]
    temperature_only: list[float]
    cross_validated: dict[str, list[float]]

    @property
    def pooled(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.domain == "all"]


def judge(fitting: Samples, held_out: Samples) -> list[ClassReport]:
    """Fit every class on one set of rows, and report it on the other. Classes with too few rows are left out."""
    reports = []
    for number in range(len(CLASSES)):
        fit_rows = fitting.select(fitting.kind == number)
        test_rows = held_out.select(held_out.kind == number)
        if len(fit_rows) >= _SMALLEST_CLASS and len(test_rows) >= _SMALLEST_CLASS:
            reports.append(_judge_class(fit_rows, test_rows))
    return reports


def gate(reports: list[ClassReport]) -> list[str]:
    """Why the calibration fails; empty if it passes."""
    failures = ["no class had enough samples to be fitted"] if not reports else []
    for report in reports:
        for cell in report.pooled:
            where = f"{cell.kind}, position {cell.position}"
            if cell.after.samples < GATE_SAMPLES:
                failures.append(f"{where}: {cell.after.samples} held-out samples, {GATE_SAMPLES} are needed")
            if cell.after.ece.value >= GATE_ECE:
                failures.append(f"{where}: ECE {cell.after.ece.value:.2%}, must be below {GATE_ECE:.0%}")
    return failures


def as_json(reports: list[ClassReport], failures: list[str]) -> dict[str, Any]:
    """The `report` object of the calibration file (`docs/calibration.md`)."""
    return {
        "gate": {"ece": GATE_ECE, "samples": GATE_SAMPLES, "failures": failures},
        "cells": [
            {
                "class": cell.kind,
                "domain": cell.domain,
                "position": cell.position,
                "before": cell.before.as_json(),
                "after": cell.after.as_json(),
            }
            for report in reports
            for cell in report.cells
        ],
        "temperature_only": {
            report.parameters.name: {
                "ece_before": [round(cell.before.ece.value, 6) for cell in report.pooled],
                "ece_after": [round(value, 6) for value in report.temperature_only],
            }
            for report in reports
        },
        "cross_validated": {
            report.parameters.name: {m: [round(v, 6) for v in values] for m, values in report.cross_validated.items()}
            for report in reports
        },
    }


def table(reports: list[ClassReport]) -> str:
    """The figures as text: pooled over domains per position, then the ECE after calibration of each domain."""
    lines = []
    for report in reports:
        p = report.parameters
        domains = list(dict.fromkeys(cell.domain for cell in report.cells if cell.domain != "all"))
        after = {(cell.domain, cell.position): cell.after.ece for cell in report.cells}
        lines += [
            f"{_title(p)}: fitted by {p.method} on {p.samples} rounds of {p.requests} prompts or requests",
            f"{'k':>2} {'samples':>8} {'survive':>8} {'ECE before':>11} {'ECE after':>20} {'floor':>6} {'Brier':>13} "
            f"{'AUROC':>6} {'bias before':>12} {'bias after':>22}  "
            + " ".join(f"{'ECE ' + domain:>20}" for domain in domains),
        ]
        for cell in report.pooled:
            b, a = cell.before, cell.after
            lines.append(
                f"{cell.position:>2} {a.samples:>8} {a.rate:>8.3f} {b.ece.value:>11.2%} {_percent(a.ece):>20} "
                f"{a.floor:>6.2%} {b.brier:>6.4f} {a.brier:>6.4f} {a.auroc.value:>6.3f} {b.bias.value:>12.2%} "
                f"{_percent(a.bias):>22}  "
                + " ".join(f"{_percent(after.get((domain, cell.position))):>20}" for domain in domains)
            )
        lines.append("")
    return "\n".join(lines)


def _judge_class(fit_rows: Samples, test_rows: Samples) -> ClassReport:
    parameters, scores = fit_class(fit_rows)
    gamma = test_rows.gamma
    raw = Curve(np.ones(gamma), np.zeros(gamma))
    fitted = Curve(np.array(parameters.slope), np.array(parameters.offset))
    plain = Curve(1.0 / np.array(parameters.temperatures), np.zeros(gamma))
    labelled = [k for k in range(1, gamma + 1) if test_rows.has_label(k).any()]
    domains = [("all", np.ones(len(test_rows), dtype=bool))] + [
        (name, test_rows.domain == index) for index, name in enumerate(test_rows.domains) if name != "all"
    ]
    before, after = {}, {}
    cells = []
    for name, chosen in domains:
        rows = test_rows.select(chosen)
        if not len(rows):
            continue
        before, after = _cells(rows, raw), _cells(rows, fitted)
        cells += [Cell(parameters.name, name, k, before[k], after[k]) for k in before]
    return ClassReport(
        parameters,
        cells,
        [(_reliability(test_rows, raw, k), _reliability(test_rows, fitted, k)) for k in labelled],
        [_pooled_ece(test_rows, plain, k) for k in labelled],
        scores,
    )


def _cells(rows: Samples, curve: Curve) -> dict[int, Figures]:
    c = curve.confidence(rows.confidence)
    a = np.multiply.accumulate(c, axis=1)
    cells = {}
    for k in range(1, rows.gamma + 1):
        seen = rows.has_label(k)
        if seen.any():
            cells[k] = figures(
                a[seen, k - 1], rows.survived(k)[seen], rows.group[seen], c[seen, k - 1], rows.survived(k - 1)[seen]
            )
    return cells


def _reliability(rows: Samples, curve: Curve, k: int) -> Reliability:
    seen = rows.has_label(k)
    return reliability(curve.survival(rows.confidence)[seen, k - 1], rows.survived(k)[seen])


def _pooled_ece(rows: Samples, curve: Curve, k: int) -> float:
    seen = rows.has_label(k)
    return ece(curve.survival(rows.confidence)[seen, k - 1], rows.survived(k)[seen])


def _title(parameters: ClassParameters) -> str:
    kind = parameters.kind
    band = "T = 0" if kind.high == 0 else f"{kind.low:g} < T" + ("" if np.isinf(kind.high) else f" <= {kind.high:g}")
    return f"{parameters.name} ({band}{', coupled' if kind.coupled else ''})"


def _percent(value: Any) -> str:
    return "-" if value is None else f"{value.value:.2%} [{value.low:.2%}, {value.high:.2%}]"
