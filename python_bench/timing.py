"""Shared by every benchmark here: fair timing, a description of the machine, and results that can be reproduced."""

from __future__ import annotations

import json
import os
import platform
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

RESULTS = Path(__file__).parent / "results"

# What CPU kernels are chosen by; the rest of the several hundred flags says nothing about speed here.
_ISA = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip
_PACKAGES = ("sglang_dspark", "sglang", "torch", "transformers", "numpy")


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


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, memory, instruction sets, accelerator, versions."""
    cpu = _cpuinfo()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "isa": [flag for flag in _ISA if flag in flags],
        "accelerators": _accelerators(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


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


def now() -> str:
    """Universal time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except FileNotFoundError:  # not Linux
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _accelerators() -> list[str]:
    try:
        import torch
    except ModuleNotFoundError:
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
