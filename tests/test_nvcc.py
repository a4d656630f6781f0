"""Every CUDA source compiles without a warning for each architecture, and no kernel spills registers."""

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
NVCC = shutil.which("nvcc")
REPORTS = ROOT / "build" / "nvcc"

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc on the PATH")


@dataclass(frozen=True)
class Compilation:
    returncode: int
    stderr: str


@dataclass(frozen=True)
class Kernel:
    name: str
    stack: int
    spill_stores: int
    spill_loads: int
    registers: int


def compile_for(source: Path, architecture: str) -> Compilation:
    command = [
        str(NVCC), "-std=c++17", "-O3", "-fmad=false", f"-arch={architecture}", f"-I{ROOT / 'csrc' / 'include'}",
        "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror", "-Xptxas", "-v",
        "-c", str(source), "-o", "/dev/null",
    ]  # fmt: skip
    kept = REPORTS / f"{source.stem}-{architecture}-{digest(source, command)}.json"
    if kept.exists():
        return Compilation(*json.loads(kept.read_text()))
    run = subprocess.run(command, capture_output=True, text=True)
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in REPORTS.glob(f"{source.stem}-{architecture}-*.json"):
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
def compiled() -> dict[tuple[str, str], Compilation]:
    """All of them, two at a time: about 80 s on two cores when nothing is cached."""
    pairs = [(source, architecture) for source in SOURCES for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda pair: compile_for(*pair), pairs)
        return {(source.name, arch): result for (source, arch), result in zip(pairs, results, strict=True)}


def kernels(report: str) -> list[Kernel]:
    """What ptxas says about each kernel of one compilation."""
    pattern = re.compile(
        r"Compiling entry function '(\S+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        re.DOTALL,
    )
    return [Kernel(name, *map(int, numbers)) for name, *numbers in pattern.findall(report)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings_or_spills(
    source: Path, architecture: str, compiled: dict[tuple[str, str], Compilation]
) -> None:
    result = compiled[source.name, architecture]
    assert result.returncode == 0, result.stderr[-5000:]
    report = kernels(result.stderr)
    assert report
    assert [k for k in report if k.spill_stores or k.spill_loads] == []
