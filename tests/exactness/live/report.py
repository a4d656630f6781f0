"""The live tests' findings as rows of JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from live.check import Judged

HEADER = ("setting", "tokens", "accepted drafts", "chi-square (dof)", "p", "power at 0.01", "verdict")


def rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    return [asdict(line) for line in judged]


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of `rows`. The statistic is that of the cells with the smallest p; p is Holm's, over the whole table."""
    out = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    for line in lines:
        test = line["tests"][line["cells"]]
        cells = (
            line["setting"],
            f"{line['tokens']:,}",
            f"{line['accepted']:,} of {line['proposed']:,}",
            f"{line['cells']}: {test['statistic']:.1f} ({test['dof']})",
            f"{line['p']:.2g}",
            f"{line['power']:.2f}",
            line["verdict"],
        )
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)
