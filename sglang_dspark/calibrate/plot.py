"""The reliability diagram of a calibration."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark.calibrate.report import ClassReport


def reliability_diagram(reports: list[ClassReport], path: Path) -> None:
    """One row a class, one column a position: mean survival per bin against what survived, raw and calibrated."""
    from matplotlib.figure import Figure

    columns = max(len(report.curves) for report in reports)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.5 * len(reports) + 0.5), layout="constrained")
    axes = figure.subplots(len(reports), columns, sharex=True, sharey=True, squeeze=False)
    for row, report in zip(axes, reports, strict=True):
        for axis, cell, (before, after) in zip(row, report.pooled, report.curves, strict=True):
            axis.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
            axis.plot(before.predicted, before.observed, ".--", color="C1", markersize=4, linewidth=0.8, label="raw")
            axis.plot(after.predicted, after.observed, ".-", color="C0", markersize=5, linewidth=1, label="calibrated")
            axis.set_title(
                f"{report.parameters.name}, k = {cell.position}\n"
                f"ECE {cell.before.ece.value:.1%} → {cell.after.ece.value:.1%}",
                fontsize=8,
            )
            axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            axis.tick_params(labelsize=7)
        row[0].set_ylabel("survived", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("predicted survival", fontsize=8)
    axes[0][0].legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
