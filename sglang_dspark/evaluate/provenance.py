"""What a measurement was made on and when, as every results file says it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

# What CPU kernels are chosen by; the rest of the several hundred flags says nothing about speed here.
_ISA = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip
_PACKAGES = ("sglang_dspark", "sglang", "torch", "transformers", "numpy")


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
