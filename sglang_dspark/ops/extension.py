"""The one place that loads the compiled extension `sglang_dspark._C`.

The extension is optional: without a compiler the package still installs, and every operation has a torch version.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import asdict, dataclass
from functools import cache
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_NAME = "sglang_dspark._C"


@dataclass(frozen=True)
class ExtensionInfo:
    """What `doctor` prints about the extension.

    Attributes:
        available: whether it was built and loads here.
        reason: why not, empty otherwise.
        compiler: the compiler and version it was built with.
        openmp: OpenMP version (its date, as in `_OPENMP`), 0 when built without.
        isas: instruction sets that are both built in and supported by this CPU, best first.
        selected: the one used unless a call asks for another.
    """

    available: bool
    reason: str = ""
    compiler: str = ""
    openmp: int = 0
    isas: tuple[str, ...] = ()
    selected: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON types."""
        return {**asdict(self), "isas": list(self.isas)}


@cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module(_NAME), ""
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        return None, "not built; reinstall the package where a C++ compiler is found (`pip install .`)"
    except ImportError as error:
        return None, f"built, but does not load: {error}"


def extension() -> ModuleType | None:
    """The compiled module, or None when it is missing (see `describe().reason`)."""
    return _load()[0]


def describe() -> ExtensionInfo:
    """Says what the extension was built with and what it uses here."""
    module, reason = _load()
    if module is None:
        return ExtensionInfo(available=False, reason=reason)
    isas = tuple(module.available_isas())
    return ExtensionInfo(
        available=True,
        compiler=module.compiler,
        openmp=module.openmp,
        isas=isas,
        selected=isas[0],
    )


def warn_missing(operation: str) -> None:
    """Say once per operation that the torch version is used, and why."""
    warn_torch(operation, f"the compiled extension is {_load()[1]}")


@cache
def warn_torch(operation: str, reason: str) -> None:
    """Say once that an operation runs in plain torch for this reason."""
    logger.warning("%s runs in plain torch, which is slow: %s", operation, reason)
