"""Errors planted in a live engine, to see that the tests find them. Applied in the engine's processes by `sampling`."""

from __future__ import annotations

from typing import Any


def plant(name: str) -> None:
    """Replace one step of the round by a wrong one, in this process."""
    PLANTS[name]()


def _peeking_schedule() -> None:
    """Verify everything or nothing by the second drafted token, which a plan of length 0 does not test."""
    from sglang_dspark.engine.planner import Planner

    honest = Planner.lengths

    def peeking(self: Any, plan: Any, block: Any) -> list[int]:
        wanted = (block.tokens[:, 1] % 2 == 0).tolist()
        return [length if want else 0 for length, want in zip(honest(self, plan, block), wanted, strict=True)]

    Planner.lengths = peeking  # type: ignore[method-assign]


def _stale_penalties() -> None:
    """Penalise every row of a block for the tokens before the block only."""
    from sglang_dspark.engine import rows

    honest = rows.penalise_rows

    def stale(logits: Any, output: list[int], drafted: list[int], penalties: Any) -> None:
        for k in range(len(drafted) + 1):
            honest(logits[k : k + 1], output, [], penalties)

    rows.penalise_rows = stale


PLANTS = {"peeking schedule": _peeking_schedule, "stale penalties": _stale_penalties}
