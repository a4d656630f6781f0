"""The project's one plot style. Figures are drawn without a display and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "grid.alpha": 0.25,
}
MARKER_SIZE = 3.5


def new_figure(title: str, rows: int, columns: int, note: str = "") -> tuple[Any, list[Any]]:
    """An empty figure and its `rows * columns` axes, row by row.

    Args:
        title: above all of it.
        rows, columns: of axes.
        note: below all of it: where the data come from.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * columns, 3.6 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        figure.suptitle(title, fontsize=11)
        if note:
            figure.supxlabel(note, fontsize=7.5, color="0.35")
    return figure, list(axes.flat)


def shades(count: int) -> list[Any]:
    """`count` colours from dark to light, for an ordered family of lines."""
    import matplotlib
    import numpy as np

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, max(count, 1))))


def label(axes: Any, title: str, x: str, y: str, legend: str | None = None, ticks: Sequence[int] = ()) -> None:
    """Title, both axis labels, and a legend with its own title; `ticks` makes x logarithmic with these marks."""
    axes.set(title=title, xlabel=x, ylabel=y)
    if ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
        axes.minorticks_off()
    if legend is not None:
        axes.legend(title=legend or None, title_fontsize=8, fontsize=7.5, frameon=False)


def save(figure: Any, path: Path) -> None:
    """Write a PNG whose bytes do not depend on the time."""
    figure.savefig(path, dpi=110, metadata={"Software": None})
