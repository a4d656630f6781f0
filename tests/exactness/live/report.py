"""The live tests' findings as rows of JSON and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from live.check import Judged

Line = Mapping[str, Any]


def rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    return [asdict(line) for line in judged]


def _statistic(line: Line) -> str:
    test = line["tests"][line["cells"]]
    return f"{line['cells']}: χ² {test['statistic']:.1f} ({test['dof']})"


COLUMNS: dict[str, Callable[[Line], str]] = {
    "setting": lambda line: line["setting"],
    "samples": lambda line: f"{line['tokens']:,}",
    "drafts accepted": lambda line: f"{line['accepted']:,} of {line['proposed']:,}",
    "statistic (dof)": _statistic,
    "p": lambda line: f"{line['p']:.2g}",
    "power": lambda line: f"{line['power']:.2f}",
    "verdict": lambda line: line["verdict"],
}


def table(lines: Sequence[Line]) -> str:
    """Markdown of `rows`: the statistic of the cells with the smallest p, and p by Holm over the whole table."""
    out = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    out += ["| " + " | ".join(cell(line) for cell in COLUMNS.values()) + " |" for line in lines]
    return "\n".join(out)
