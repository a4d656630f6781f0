"""Every CUDA source compiles without a warning, and no kernel spills registers on any architecture.

No source asks which architecture it is compiled for, so one intermediate code serves all: a third less time.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
HEADERS = sorted(p for kind in ("cuda/*", "*.h") for p in (ROOT / "csrc" / "include" / "dspark").glob(kind))
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
GENERATE = ("-gencode", f"arch=compute_80,code=[{','.join(ARCHITECTURES)}]")
NVCC = shutil.which("nvcc")
REPORTS = ROOT / "build" / "nvcc"

pytestmark = [pytest.mark.skipif(NVCC is None, reason="no nvcc on the PATH"), pytest.mark.xdist_group("nvcc")]


@dataclass(frozen=True)
class Compilation:
    returncode: int
    stderr: str


@dataclass(frozen=True)
class Kernel:
    name: str
    architecture: str
    stack: int
    spill_stores: int
    spill_loads: int
    registers: int


def compile_source(source: Path) -> Compilation:
    command = [
        str(NVCC), "-std=c++17", "-O3", "-fmad=false", *GENERATE, f"-I{ROOT / 'csrc' / 'include'}",
        "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror", "-Xptxas", "-v",
        "-c", str(source), "-o", "/dev/null",
    ]  # fmt: skip
    kept = REPORTS / f"{source.stem}-{digest(source, command)}.json"
    if kept.exists():
        return Compilation(*json.loads(kept.read_text()))
    run = subprocess.run(command, capture_output=True, text=True)
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in REPORTS.glob(f"{source.stem}-*.json"):
        old.unlink(missing_ok=True)
    kept.write_text(json.dumps([run.returncode, run.stderr]))
    return Compilation(run.returncode, run.stderr)


def digest(source: Path, command: list[str]) -> str:
    """Of everything a compilation depends on, so that an unchanged one need not run again."""
    state = hashlib.sha256(" ".join([*command, version()]).encode())
    for file in (source, *HEADERS):
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


@cache
def version() -> str:
    return subprocess.run([str(NVCC), "--version"], capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compilation]:
    """All of them, two at a time: about 65 s on two cores when nothing is cached."""
    with ThreadPoolExecutor(2) as pool:
        return {source.name: result for source, result in zip(SOURCES, pool.map(compile_source, SOURCES), strict=True)}


def kernels(report: str) -> list[Kernel]:
    """What ptxas says about each kernel of one compilation."""
    pattern = re.compile(
        r"Compiling entry function '(\S+)' for '(\S+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        re.DOTALL,
    )
    return [Kernel(name, target, *map(int, numbers)) for name, target, *numbers in pattern.findall(report)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings_or_spills(source: Path, architecture: str, compiled: dict[str, Compilation]) -> None:
    result = compiled[source.name]
    assert result.returncode == 0, result.stderr[-5000:]
    report = [kernel for kernel in kernels(result.stderr) if kernel.architecture == architecture]
    assert report
    assert [k for k in report if k.spill_stores or k.spill_loads] == []
