"""What every launch shares: the module of kernels, the stream, workspaces, and the checks of tensors.

Workspaces are kept per device and use, so a device's operations belong on one stream at a time, as the engine has them.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from sglang_dspark.ops.noise import Noise

_NAME = "sglang_dspark._CUDA"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FLOATS = tuple(DTYPES)
# Rows of logits of a selection, and requests of an accept: each has a counter in the workspace.
MAX_ROWS = 16384

_device_type = "cuda"

_workspaces: dict[tuple[str, torch.device], list[Tensor]] = {}


@cache
def _load() -> ModuleType | None:
    try:
        return importlib.import_module(_NAME)
    except ImportError:
        return None


def available() -> bool:
    """Whether the CUDA extension was built and loads here."""
    return _load() is not None


def missing() -> str:
    """Why there are no kernels, empty when there are."""
    return "" if available() else f"{_NAME} is not built or does not load; reinstall the package where nvcc is found"


def device_type() -> str:
    """Whose tensors belong to the kernels, there or not: "cuda", or "cpu" for the emulation of tests/."""
    return _device_type


def native_module() -> ModuleType:
    """The compiled module; raises RuntimeError where there is none."""
    module = _load()
    if module is None:
        raise RuntimeError(missing())
    return module


def stream_of(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as a handle."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def multiprocessors(device: torch.device) -> int:
    """Of the device; a few where there are none, so that work is still split."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def scratch(name: str, size: int, device: torch.device) -> Tensor:
    """Zeroed bytes, the same ones for the same use. Outgrown ones stay alive: a captured graph may hold them."""
    kept = _workspaces.setdefault((name, device), [])
    if not kept or kept[-1].numel() < size:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{name}: run it once with these shapes before capturing it into a graph")
        kept.append(torch.zeros(max(size, 16), dtype=torch.uint8, device=device))
    return kept[-1]


def check(
    name: str, tensor: Tensor, shape: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...], like: Tensor
) -> int:
    """Raises ValueError unless shape (None: any), dtype, device and contiguous rows fit; returns the address."""
    fits = tensor.ndim == len(shape) and all(s is None or s == t for s, t in zip(shape, tensor.shape, strict=True))
    if not fits or tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {shape} of {dtypes}, got {tuple(tensor.shape)} {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, got {tensor.device}")
    if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected contiguous rows, got strides {tensor.stride()}")
    return tensor.data_ptr()


def vector(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> int:
    """As `check`, for a contiguous tensor or None (address 0)."""
    if tensor is None:
        return 0
    address = check(name, tensor, shape, (dtype,), like)
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")
    return address


def noise_fields(noise: Noise, batch: int, like: Tensor) -> dict[str, int]:
    """The fields of every operation that draws. Raises ValueError unless streams and rounds are `[B]` int64."""
    return {
        "seed": noise.seed & 0xFFFF_FFFF_FFFF_FFFF,
        "streams": vector("noise.streams", noise.streams, (batch,), torch.int64, like),
        "rounds": vector("noise.rounds", noise.rounds, (batch,), torch.int64, like),
    }
