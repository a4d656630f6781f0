"""Shared by every benchmark here: fair timing, a description of the machine, and results that can be reproduced."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_dspark.evaluate.provenance import machine, now

RESULTS = Path(__file__).parent / "results"


def interleave(
    functions: dict[str, Callable[[], Any]], repetitions: int, warmup: int = 2, seed: int = 0
) -> dict[str, list[float]]:
    """Time functions side by side: each once per repetition, in an order drawn anew each time.

    Drift of the machine (clock, other tenants) then meets all of them alike, and entry i of every list belongs to the
    same repetition, so that lists can be compared in pairs. A function that queues work on a device must wait for it.

    Args:
        functions: by name; called without arguments.
        repetitions: timed calls of each.
        warmup: calls of each before, not timed.
        seed: of the order.

    Returns:
        Seconds per call, by name, in the order of the repetitions.
    """
    order = random.Random(seed)
    names = list(functions)
    for _ in range(warmup):
        for name in names:
            functions[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repetitions):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            functions[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Summary:
    """Seconds per call: median, quartiles and extremes."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float

    def format(self, unit: str = "us") -> str:
        """`median [lower quartile, upper quartile]` in us, ms or s."""
        scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
        middle, low, high = (x * scale for x in (self.median, self.lower_quartile, self.upper_quartile))
        return f"{middle:.1f} [{low:.1f}, {high:.1f}] {unit}"


def summary(seconds: Sequence[float]) -> Summary:
    """Reduce one list of `interleave`.

    Raises:
        ValueError: the list is empty.
    """
    if not seconds:
        raise ValueError("no timed call to summarise")
    slow, low, middle, high, fast = (float(x) for x in np.percentile(seconds, [100, 25, 50, 75, 0]))
    return Summary(middle, low, high, fast, slow)


def write_results(name: str, payload: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `payload` as `<folder>/<name>.json`, with the command, the machine and the time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = {"command": command(), "finished": now(), "machine": machine(), **payload}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def command() -> str:
    """The command line that reproduces this run, from the repository's root."""
    script = Path(sys.argv[0]).resolve()
    root = Path(__file__).resolve().parent.parent
    shown = script.relative_to(root) if script.is_relative_to(root) else Path(script.name)
    return shlex.join(["python", str(shown), *sys.argv[1:]])
