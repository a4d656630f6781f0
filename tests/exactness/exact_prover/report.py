"""The prover's findings, and the live tests', as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from exact_prover.enumeration import Proof

COMMAND = 'pytest tests/exactness -m "exact or not engine" --exactness-report python_bench/results/exactness.json'


class Report:
    def __init__(self) -> None:
        self._rows: list[dict[str, object]] = []
        self._live: list[dict[str, object]] = []
        self._live_seconds = 0.0
        self._start = time.monotonic()

    def add(self, kind: str, setting: str, proofs: Sequence[Proof], passed: bool) -> None:
        """One row for the worlds of a setting, with the largest total variation among them.

        Args:
            kind: "lossless" (the total variation has to be 0) or "planted" (the prover has to find more).
        """
        variation = max(proof.total_variation for proof in proofs)
        self._rows.append(
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

    def add_live(self, rows: list[dict[str, object]], seconds: float) -> None:
        """The table of the live tests and how long it took."""
        self._live, self._live_seconds = rows, seconds

    def write(self, path: Path) -> None:
        """Write what this session found; of a session that ran one part only, the other part of the file stays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        summary = json.loads(path.read_text()) if path.exists() else {}
        summary["command"] = COMMAND
        if self._rows:
            summary |= {
                "arithmetic": "rational, exact",
                "seconds": round(time.monotonic() - self._start - self._live_seconds, 1),
                "leaves": sum(int(str(row["leaves"])) for row in self._rows),
                "settings": self._rows,
            }
        if self._live:
            summary["live"] = {"seconds": round(self._live_seconds, 1), "settings": self._live}
        path.write_text(json.dumps(summary, indent=1) + "\n")
