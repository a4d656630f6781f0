"""Runs the CUDA sources on the CPU (README.md): builds them once, then each file of `cases/` under the sanitizers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
CASES = sorted((HERE / "cases").glob("test_*.py"))
pytestmark = pytest.mark.xdist_group("emulation")  # built once

# Memory errors end the process, so each runs in its own; NumPy keeps the start short. Arguments are addresses.
FAULTY = """
import os, sys
sys.path.insert(0, os.environ["DSPARK_EMULATION_MODULE"])
import numpy, _cuda_emulated as module
module.set_order({order})
values = numpy.arange({count}, dtype=numpy.float32)
out = numpy.zeros(64, numpy.int32)
{call}
"""


def _build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("emulation_build", HERE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    build = _build()
    if missing := build.missing_tool():
        pytest.skip(missing)
    return build.environment(build.build())


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--durations=5", str(case)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE / "cases")
    print(run.stdout[-20000:], run.stderr[-20000:])
    assert run.returncode == 0


def run_faulty(
    environment: dict[str, str], call: str, count: int = 2048, order: int = 1
) -> subprocess.CompletedProcess:
    code = FAULTY.format(order=order, count=count, call=call)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "call",
    [
        "module.faulty.write_past_end(values.ctypes.data, len(values))",
        "module.faulty.read_before_start(values.ctypes.data, out.ctypes.data)",
        "module.faulty.write_past_shared(out.ctypes.data)",
        "module.faulty.write_past_carved(out.ctypes.data)",
    ],
)
def test_accesses_out_of_bounds_are_caught(call: str, environment: dict[str, str]) -> None:
    run = run_faulty(environment, call)
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
    assert "_kernel" in run.stderr  # names the kernel


def test_the_last_element_is_in_bounds(environment: dict[str, str]) -> None:
    assert run_faulty(environment, "module.faulty.write_past_end(values.ctypes.data, len(values) - 1)").returncode == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("module.faulty.diverge(values.ctypes.data)", "returned while others wait in __syncthreads"),
        ("module.faulty.leave_warp(out.ctypes.data)", "returned while others wait in __shfl_xor_sync"),
        ("module.faulty.too_much_shared(values.ctypes.data)", "256 bytes used, 128 launched with"),
    ],
)
def test_faults_of_a_kernel_are_named(call: str, message: str, environment: dict[str, str]) -> None:
    run = run_faulty(environment, call)
    assert run.returncode == 1
    assert message in run.stderr


RACES = """
def results(run):
    found = set()
    for order in range(6):
        module.set_order(order)
        found.add(run())
    return len(found)

def reverse(barrier):
    values = numpy.arange(40, dtype=numpy.float32)
    module.faulty.reverse(values.ctypes.data, 40, barrier)
    return values.tobytes()

def count(atomic):
    counter = numpy.zeros(1, numpy.int32)
    module.faulty.count(counter.ctypes.data, 100, atomic)
    return counter.tobytes()

print(results(lambda: reverse(True)), results(lambda: reverse(False)))
print(results(lambda: count(True)), results(lambda: count(False)))
"""


def test_races_change_the_result(environment: dict[str, str]) -> None:
    run = run_faulty(environment, RACES)
    reverse, count = (line.split() for line in run.stdout.splitlines())
    assert (reverse[0], count[0]) == ("1", "1")
    assert int(reverse[1]) > 1
    assert int(count[1]) > 1
