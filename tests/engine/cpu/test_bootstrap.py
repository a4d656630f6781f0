"""The import-time stand-ins: when they answer, when they stay out of the way. Each case is a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREAMBLE = "import sys; from sglang_dspark.engine.cpu.bootstrap import install; install(); install()\n"


def run(code: str, *, cpu_engine: bool = True, path: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "SGLANG_USE_CPU_ENGINE"}
    if cpu_engine:
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_installs_once_and_imports_nothing_heavy() -> None:
    code = """
from sglang_dspark.engine.cpu import bootstrap
ours = [type(f).__name__ for f in sys.meta_path if type(f).__module__ == bootstrap.__name__]
print(sorted(ours), "torch" in sys.modules, "sglang" in sys.modules, type(sys.meta_path[-1]).__name__)
"""
    assert run(code) == "['SglKernelFinder', 'TorchvisionSchemas'] False False SglKernelFinder"


def test_stand_in_answers_for_a_cpu_engine() -> None:
    code = """
import sgl_kernel, sgl_kernel.speculative
from sglang_dspark.engine.cpu.bootstrap import kernel_package_is_stand_in
print(kernel_package_is_stand_in(), sgl_kernel.speculative.reconstruct_indices_from_tree_mask.__module__)
"""
    assert run(code) == "True sgl_kernel.tree"


def test_no_stand_in_unless_the_cpu_engine_is_asked_for() -> None:
    assert run("import importlib.util; print(importlib.util.find_spec('sgl_kernel'))", cpu_engine=False) == "None"


def test_a_real_package_is_never_shadowed(tmp_path: Path) -> None:
    package = tmp_path / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n", encoding="utf-8")
    code = """
import sgl_kernel
from sglang_dspark.engine.cpu.bootstrap import kernel_package_is_stand_in
print(sgl_kernel.REAL, kernel_package_is_stand_in())
"""
    assert run(code, path=tmp_path) == "True False"


@pytest.mark.parametrize("build", ["0.28.0+cu130", "0.28.0+cpu"])
def test_schemas_are_declared_only_beside_a_cuda_build(tmp_path: Path, build: str) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "version.py").write_text(f"__version__ = '{build}'\n", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    code = """
import torch, torchvision
print(hasattr(torch.ops.torchvision, "nms"), torch.version.cuda or torch.version.hip)
"""
    declared, accelerator = run(code, path=tmp_path).split()
    assert declared == str("+cu" in build and accelerator == "None")


def test_unsupported_features_name_themselves() -> None:
    code = """
import sgl_kernel
for function in (sgl_kernel.rotate_input_ids_cpu, sgl_kernel.build_draft_decode_metadata_cpu):
    try:
        function()
    except RuntimeError as error:
        print(error)
"""
    out = run(code)
    assert "Multi-layer EAGLE needs a CPU build" in out
    assert "Use --attention-backend torch_native." in out
