"""The prover's findings, and the live tests', as JSON and as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from live.report import table as live_table

from exact_prover.enumeration import Proof

COMMAND = "make exact"
HEADER = "| setting | samples | statistic | p | verdict |\n|---|---|---|---|---|"


class Report:
    """What one process found.

    Attributes:
        found: as handed from process to process: rows of the prover, rows of the live tests, seconds of the latter.
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"prover": [], "live": [], "live_seconds": 0.0}
        self._start = time.monotonic()

    def add(self, kind: str, setting: str, proofs: Sequence[Proof], passed: bool) -> None:
        """One row for the worlds of a setting, with the largest total variation among them.

        Args:
            kind: "lossless" (the total variation has to be 0) or "planted" (the prover has to find more).
        """
        variation = max(proof.total_variation for proof in proofs)
        self.found["prover"].append(
            {
                "kind": kind,
                "setting": setting,
                "worlds": len(proofs),
                "leaves": sum(proof.leaves for proof in proofs),
                "distinct_plans": len(frozenset().union(*(proof.plans for proof in proofs))),
                # The exact fraction, where it is short enough to be read.
                "total_variation": str(variation) if len(str(variation)) < 40 else None,
                "total_variation_float": float(variation),
                "verdict": "pass" if passed else "fail",
            }
        )

    def add_live(self, rows: list[dict[str, Any]], seconds: float) -> None:
        """The table of the live tests and how long it took."""
        self.found |= {"live": rows, "live_seconds": seconds}

    def merge(self, found: dict[str, Any]) -> None:
        """Take over what another process found."""
        self.found["prover"] += found.get("prover", [])
        if found.get("live"):
            self.add_live(found["live"], found["live_seconds"])

    def table(self) -> str:
        """The prover's rows, every draw enumerated, then the live tests'."""
        out = []
        if self.found["prover"]:
            out = [HEADER, *map(_line, self._rows())]
        if self.found["live"]:
            out += ["", live_table(self.found["live"])]
        return "\n".join(out)

    def write(self, path: Path) -> None:
        """Write what this session found; of a session that ran one part only, the other part of the file stays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        summary = json.loads(path.read_text()) if path.exists() else {}
        summary["command"] = COMMAND
        live_seconds = self.found["live_seconds"]
        if rows := self._rows():
            summary |= {
                "arithmetic": "rational, exact",
                "seconds": round(time.monotonic() - self._start - live_seconds, 1),
                "leaves": sum(row["leaves"] for row in rows),
                "settings": rows,
            }
        if self.found["live"]:
            summary["live"] = {"seconds": round(live_seconds, 1), "settings": self.found["live"]}
        path.write_text(json.dumps(summary, indent=1) + "\n")

    def _rows(self) -> list[dict[str, Any]]:
        """In one order, however many processes found them."""
        return sorted(self.found["prover"], key=lambda row: (row["kind"], row["setting"]))


def _line(row: dict[str, Any]) -> str:
    variation = row["total_variation"] or f"{row['total_variation_float']:.2g}"
    found = "found" if row["verdict"] == "pass" else "missed"
    verdict = found if row["kind"] == "planted" else row["verdict"]
    name = row["setting"] if row["kind"] == "lossless" else f"planted: {row['setting']}"
    return f"| {name} | all {row['leaves']:,} | total variation {variation} | exact | {verdict} |"
