"""The picture of a calibration: reliability diagrams of held-out rows, raw and calibrated."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark import plotting
from sglang_dspark.calibrate.report import ClassReport


def reliability_diagram(reports: list[ClassReport], path: Path, title: str) -> None:
    """A row of two panels for each class: what survived over the mean predicted survival of each bin, per position.

    Args:
        reports: at least one.
        path: of the PNG; its folder is made if missing.
        title: above all panels.
    """
    note = "15 bins of equal size a line, held-out rounds. On the diagonal, what was predicted is what happened."
    figure, axes = plotting.new_figure(title, len(reports), 2, note)
    for row, report in enumerate(reports):
        samples = min(cell.after.samples for cell in report.pooled)
        for column, state in enumerate(("raw", "calibrated")):
            panel = axes[2 * row + column]
            panel.plot([0, 1], [0, 1], color="0.75", linewidth=1)
            colours = plotting.shades(len(report.curves))
            for cell, curves, colour in zip(report.pooled, report.curves, colours, strict=True):
                bins, error = curves[column], (cell.before, cell.after)[column].ece.value
                label = f"k = {cell.position}: {error:.1%}"
                panel.plot(bins.predicted, bins.observed, "o-", color=colour, label=label)
            panel.set(xlim=(0, 1), ylim=(0, 1))
            heading = f"{report.parameters.name}, {state}, {samples} samples a position"
            plotting.label(panel, heading, "predicted survival", "share that survived", legend="ECE")
    path.parent.mkdir(parents=True, exist_ok=True)
    plotting.save(figure, path)
