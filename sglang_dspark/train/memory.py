"""The process's memory."""

from __future__ import annotations

import ctypes
import sys


def release_free_memory() -> None:
    """Give freed heap pages back to the system; glibc keeps them, and a step's temporaries differ in size each time
    (9 GiB instead of 4 were measured after an hour)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
