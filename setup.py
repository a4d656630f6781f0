"""Builds the optional extensions `sglang_dspark._C` and, where nvcc is, `_CUDA`; everything else is in pyproject.toml.

No flag ties it to the building machine: each instruction set has its own translation unit, chosen at run time. Where
there is no C++ compiler the package installs without the extension and uses torch instead (`doctor` says so).
"""

import shutil
import subprocess
import sys
import sysconfig
from glob import glob
from pathlib import Path

import pybind11
from pybind11.setup_helpers import Pybind11Extension
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# GCC 12 takes the undefined operand inside its own AVX-512 intrinsics for a mistake of ours.
QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
# The noise must have the same bits everywhere; a compiler may not fuse what the sources keep apart.
EXACT = ["-ffp-contract=off"]
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]

extension = Pybind11Extension(
    "sglang_dspark._C",
    sources=["csrc/binding.cpp", *sorted(glob("csrc/cpu/*.cpp"))],
    include_dirs=["csrc/include"],
    depends=sorted(glob("csrc/include/dspark/*.h") + glob("csrc/cpu/*.h")),
    cxx_std=17,
    extra_compile_args=["-O3", "-Wall", "-Wextra", *QUIET, *EXACT, *OPENMP],
    extra_link_args=OPENMP,
    optional=True,
)

cuda = Extension(
    "sglang_dspark._CUDA",
    sources=[*sorted(glob("csrc/cuda/binding/*.cpp")), *sorted(glob("csrc/cuda/*.cu"))],
    depends=sorted(glob("csrc/include/dspark/**/*.*h", recursive=True)),
    optional=True,
)
# Machine code for Ampere, Hopper and Blackwell, and PTX for what comes after.
ARCHITECTURES = [
    *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in (80, 90, 100)),
    "-gencode=arch=compute_100,code=compute_100",
]


class BuildExt(build_ext):
    """nvcc compiles and links the CUDA extension in one command; its runtime is linked in."""

    def build_extension(self, ext: Extension) -> None:
        if ext is not cuda:
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        includes = ["csrc/include", pybind11.get_include(), sysconfig.get_paths()["include"]]
        command = [
            "nvcc",
            "-shared",
            "-std=c++17",
            "-O3",
            "-fmad=false",
            "-Xcompiler",
            "-fPIC,-fvisibility=hidden",
            *ARCHITECTURES,
        ]
        subprocess.run([*command, *(f"-I{i}" for i in includes), *ext.sources, "-o", str(target)], check=True)


class BuildPy(build_py):
    """Profiles lie beside the package in the repository, and inside it where it is installed."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "sglang_dspark", "data", "profiles")
            target.mkdir(parents=True, exist_ok=True)
            for source in sorted(Path("profiles").glob("*.json")):
                shutil.copyfile(source, target / source.name)


def cuda_build_of_torch() -> bool:
    """The CUDA extension is of use only beside a torch that has CUDA tensors."""
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None


extensions = [extension]
if shutil.which("nvcc") and cuda_build_of_torch():
    extensions.append(cuda)

setup(ext_modules=extensions, cmdclass={"build_ext": BuildExt, "build_py": BuildPy})
