"""Compiles the CUDA sources with a host compiler, against the emulation's headers, into a Python module."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("DSPARK_EMULATION_BUILD", ROOT / "build" / "emulation"))

COMPILER = os.environ.get("CXX", "g++")
# Of the undefined behaviours, those that a kernel could have; checking all of them doubles the time to compile.
SANITIZE = [
    "-fsanitize=address,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow",
    "-fno-sanitize-recover=all",
]
FLAGS = [
    *("-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-omit-frame-pointer"),
    # Attributes and pragmas that only nvcc knows are ignored here; the nvcc test compiles them with warnings as errors.
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-attributes"),
]
INCLUDES = [HERE / "include", ROOT / "csrc" / "include", ROOT / "csrc" / "cuda", HERE / "src"]


BINDING = (ROOT / "csrc" / "cuda" / "binding" / "register.cpp", HERE / "src" / "module.cpp")


def sources() -> list[Path]:
    """Every kernel, the binding's registration, and the emulation itself."""
    kernels = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    return [*kernels, BINDING[0], *sorted((HERE / "src").glob("*.cpp"))]


def missing_tool() -> str:
    """Why the emulation cannot be built here, empty when it can."""
    if shutil.which(shlex.split(COMPILER)[0]) is None:
        return f"no C++ compiler ({COMPILER})"
    if not Path(runtime("libasan.so")).is_absolute():
        return f"{COMPILER} has no AddressSanitizer runtime"
    return ""


def runtime(library: str) -> str:
    """Path of one of the compiler's runtime libraries, to be loaded before Python's own."""
    found = subprocess.run([*shlex.split(COMPILER), f"-print-file-name={library}"], capture_output=True, text=True)
    return found.stdout.strip()


def digest(files: Iterable[Path], extra: str) -> str:
    state = hashlib.sha256(extra.encode())
    for file in files:
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


def headers() -> list[Path]:
    return sorted(h for folder in INCLUDES for h in folder.rglob("*.*h"))


def compile_one(source: Path, common: str) -> Path:
    """The object of one source, from the cache when neither it nor a header changed."""
    target = BUILD / f"{source.stem}-{digest([source], common)}.o"
    if not target.exists():
        language = ["-x", "c++"] if source.suffix == ".cu" else []
        if source in BINDING:  # much template code that runs once a call
            language = ["-O0", "-g0"]
        includes = [f"-I{folder}" for folder in (*INCLUDES, pybind11.get_include(), sysconfig.get_paths()["include"])]
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        command = [*shlex.split(COMPILER), *FLAGS, *SANITIZE, *includes, *language, "-c", str(source)]
        subprocess.run([*command, "-o", str(partial)], check=True)
        partial.replace(target)
    return target


def build(jobs: int = 2) -> Path:
    """Builds what changed and returns the folder to import `_cuda_emulated` from."""
    BUILD.mkdir(parents=True, exist_ok=True)
    common = digest(headers(), " ".join([COMPILER, *FLAGS, *SANITIZE, pybind11.__version__]))
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda source: compile_one(source, common), sources()))
    folder = BUILD / digest(objects, "link")
    module = folder / f"_cuda_emulated{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists():
        folder.mkdir(exist_ok=True)
        partial = module.with_suffix(f".{os.getpid()}.tmp")
        link = [*shlex.split(COMPILER), "-shared", *SANITIZE, *map(str, objects), "-o", str(partial)]
        subprocess.run(link, check=True)
        partial.replace(module)
        _forget_old(folder, set(objects))
    return folder


def _forget_old(folder: Path, objects: set[Path]) -> None:
    for old in BUILD.iterdir():
        if old.is_dir() and old != folder:
            shutil.rmtree(old, ignore_errors=True)
        elif old.suffix == ".o" and old not in objects:
            old.unlink(missing_ok=True)


def environment(folder: Path) -> dict[str, str]:
    """Environment of a Python that imports the module: the sanitizers' runtimes come first."""
    preload = " ".join(runtime(library) for library in ("libasan.so", "libubsan.so", "libstdc++.so"))
    return {
        **os.environ,
        "LD_PRELOAD": preload,
        # Python keeps memory until it exits; a kernel's stack is a fiber's, where locals must not move to the heap.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "DSPARK_EMULATION_MODULE": str(folder),
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    print(build())
