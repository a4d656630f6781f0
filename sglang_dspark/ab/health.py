"""Is an arm well? Its failures by kind, its start, and when to stop measuring it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sglang_dspark.ab.store import Cell

# An arm is given up after this many cells in a row of which this share of the requests failed.
GIVE_UP_CELLS, GIVE_UP_SHARE = 2, 0.5
_SLOW_START = 3.0


def failure_kind(error: str) -> str:
    """One of: refused, dropped connection, no answer in time, HTTP status, aborted, other."""
    if error.startswith("HTTP "):
        return error.split(":")[0]
    for kind, marks in (
        ("no answer in time", ("no complete answer within",)),
        ("refused", ("ClientConnectorError", "Cannot connect")),
        ("dropped connection", ("Disconnected", "ended before", "Payload", "ConnectionReset", "ClientOSError")),
        ("aborted", ("aborted",)),
    ):
        if any(mark in error for mark in marks):
            return kind
    return "other"


def failures(cells: Sequence[Cell]) -> dict[str, int]:
    """Failed requests by kind."""
    return dict(Counter(failure_kind(a["error"]) for cell in cells for a in cell.answers if a["error"] is not None))


def given_up(cells: Sequence[Cell]) -> str | None:
    """Why an arm is measured no further, None while it is.

    Args:
        cells: the arm's, in the order they were measured.
    """
    last = cells[-GIVE_UP_CELLS:]
    if len(last) < GIVE_UP_CELLS or any(c.figures["failed"] < GIVE_UP_SHARE * c.figures["requests"] for c in last):
        return None
    kinds = failures(last)
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda entry: -entry[1]))
    requests = sum(cell.figures["requests"] for cell in last)
    return f"{sum(kinds.values())} of its last {requests} requests failed ({shown})"


def health(
    arm: str, cells: Sequence[Cell], starts: Mapping[str, Sequence[float]], stopped: str | None
) -> dict[str, Any]:
    """An arm's requests, failures by kind, start, and what a reader must know of it.

    Args:
        arm: its name.
        cells: all of the experiment.
        starts: seconds each start took, by arm.
        stopped: why it was given up.
    """
    mine = [cell for cell in cells if cell.arm == arm]
    requests = sum(cell.figures["requests"] for cell in mine)
    kinds = failures(mine)
    seconds = median(starts[arm]) if starts.get(arm) else None
    others = [median(times) for name, times in starts.items() if name != arm and times]
    slow = seconds is not None and bool(others) and seconds > _SLOW_START * median(others)
    warnings = []
    if stopped:
        warnings.append(f"given up: {stopped}")
    elif kinds:
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        warnings.append(f"{sum(kinds.values())} of {requests} requests failed: {shown}")
    if slow:
        warnings.append(f"slow start: {seconds:.0f} s, the others {median(others):.0f} s")
    return {
        "requests": requests,
        "failed": sum(kinds.values()),
        "failures": kinds,
        "start_seconds": seconds,
        "warnings": warnings,
    }
