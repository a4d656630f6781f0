"""Import-time stand-ins for a CPU engine: `sgl_kernel` and two operators of torchvision.

Both are needed before any SGLang module can be imported, in the launcher and in every process it spawns, so a
plugin comes too late. `install()` is called at the top of the launcher's main module, which multiprocessing's
"spawn" imports first in every child.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

_STAND_IN = Path(__file__).with_name("sgl_kernel_stand_in")
_TORCHVISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_BUILD_TAG = re.compile(r"""^__version__\s*=\s*['"]([^'"]*)['"]""", re.MULTILINE)


def cpu_engine_requested() -> bool:
    """True when SGLang was asked for its CPU engine (`SGLANG_USE_CPU_ENGINE=1`)."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


class SglKernelFinder(MetaPathFinder):
    """Answers `import sgl_kernel` when nobody else can. Belongs at the end of `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "sgl_kernel" or not cpu_engine_requested():
            return None
        return spec_from_file_location(fullname, _STAND_IN / "__init__.py", submodule_search_locations=[str(_STAND_IN)])


class TorchvisionSchemas(MetaPathFinder):
    """Declares what a CUDA build of torchvision cannot, the first time it is imported beside a CPU torch.

    PyPI's torchvision is linked against `libtorch_cuda.so`; beside a CPU torch its extension does not load, and
    importing its Python half fails at `register_fake("torchvision::nms")`, and with it most of transformers. The
    schemas alone are enough. Belongs at the front of `sys.meta_path`; it finds nothing itself and leaves after its
    one use.
    """

    def __init__(self) -> None:
        self.library: Any = None  # the declarations live as long as this object

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        if _torchvision_is_cuda_build():
            import torch

            if torch.version.cuda is None and torch.version.hip is None:
                self.library = torch.library.Library("torchvision", "FRAGMENT")
                for schema in _TORCHVISION_SCHEMAS:
                    self.library.define(schema)
                _KEPT.append(self)
        return None


_KEPT: list[TorchvisionSchemas] = []


def _torchvision_is_cuda_build() -> bool:
    """Reads the build tag ("0.28.0+cu130") from the file, since importing the package is what fails."""
    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    version_file = Path(spec.origin).with_name("version.py")
    if not version_file.is_file():
        return False
    found = _BUILD_TAG.search(version_file.read_text(encoding="utf-8"))
    return found is not None and "+cpu" not in found.group(1)


def install() -> None:
    """Put both finders in place. Idempotent; imports neither torch nor SGLang.

    Harmless on a CUDA machine: the first acts only while `SGLANG_USE_CPU_ENGINE=1` (read when an import happens, so
    the call may come before the variable is set) and nobody else has the package, the second only beside a CPU torch.
    """
    if not any(isinstance(finder, SglKernelFinder) for finder in sys.meta_path):
        sys.meta_path.append(SglKernelFinder())
    if "torchvision" not in sys.modules and not any(isinstance(f, TorchvisionSchemas) for f in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionSchemas())


def kernel_package_is_stand_in() -> bool | None:
    """Whether the imported `sgl_kernel` is ours; None when it has not been imported."""
    module = sys.modules.get("sgl_kernel")
    return None if module is None else bool(getattr(module, "IS_STAND_IN", False))
