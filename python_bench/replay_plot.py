"""The load-adaptation picture of `replay`: throughput and mean budget over concurrency, one column a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_dspark import plotting

_SHOWN = {"adaptive causal": "C3", "adaptive lagged": "C1", "causal": "C0", "threshold": "C2"}
_WIDE = 4


def draw(payload: dict[str, Any], path: Path) -> None:
    """Write the PNG: for each table, throughput relative to plain decoding, and draft tokens a request.

    Args:
        payload: of `replay`.
        path: of the picture.
    """
    names = list(payload["tables"])
    columns = min(len(names), _WIDE)
    bands = -(-len(names) // columns)
    note = "SIMULATION. Only tables named after a profile were measured. Grey: fixed lengths, dark to light."
    figure, axes = plotting.new_figure("Load adaptation (simulation)", 2 * bands, columns, note)
    for i, name in enumerate(names):
        band, column = divmod(i, columns)
        above, below = (axes[(2 * band + row) * columns + column] for row in (0, 1))
        _panels(above, below, name, payload["tables"][name], legend="" if i == 0 else None)
    for unused in range(len(names), bands * columns):
        band, column = divmod(unused, columns)
        for row in (0, 1):
            axes[(2 * band + row) * columns + column].set_axis_off()
    plotting.save(figure, path)


def _panels(above: Any, below: Any, name: str, entry: dict[str, Any], legend: str | None) -> None:
    cells = entry["cells"]
    loads = [cell["load"] for cell in cells]
    fixed = [arm for arm in cells[0]["arms"] if arm == "none" or arm.startswith("fixed")]
    for i, arm in enumerate(fixed):
        shade = str(0.25 + 0.6 * i / max(len(fixed) - 1, 1))
        above.plot(loads, _relative(cells, arm), color=shade, linewidth=0.9, label=arm if arm in fixed[1::3] else None)
    for arm, colour in _SHOWN.items():
        above.plot(loads, _relative(cells, arm), color=colour, marker="o", markersize=plotting.MARKER_SIZE, label=arm)
        below.plot(
            loads,
            [cell["arms"][arm]["budget"] for cell in cells],
            color=colour,
            marker="o",
            markersize=plotting.MARKER_SIZE,
            label=arm,
        )
    for domain, budgets in entry["budget_by_domain"].items():
        below.plot(loads, budgets, linestyle=":", linewidth=1.0, label=f"{domain} only")
    plotting.label(above, name, "concurrent requests", "throughput / none", legend=legend, ticks=loads)
    plotting.label(below, "", "concurrent requests", "draft tokens a request", legend=legend, ticks=loads)


def _relative(cells: list[dict[str, Any]], arm: str) -> list[float]:
    return [cell["arms"][arm]["throughput"] / cell["arms"]["none"]["throughput"] for cell in cells]
