"""`ops.cuda`, and the dispatch to it, on CPU tensors with the emulated kernels, and inputs with planted outliers."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.cuda import launch
from sglang_dspark.ops.markov import ConfidenceHead, MarkovHead
from sglang_dspark.ops.noise import Noise

sys.path.insert(0, os.environ["DSPARK_EMULATION_MODULE"])
module = importlib.import_module("_cuda_emulated")
assert module.checked, "built without AddressSanitizer"
launch._load = lambda: module  # type: ignore[assignment]

# Outputs come from torch.empty, which is then filled with NaN or the largest integer.
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

ORDERS = (0, 1, 7)  # index order, and two random ones


def in_every_order(run: Callable[[], Any], orders: tuple[int, ...] = ORDERS) -> Any:
    """Runs an operation with its threads in several orders; the result must be the same bits."""
    first = None
    for order in orders:
        module.set_order(order)
        result = run()
        tensors = flatten(result)
        if first is None:
            first, kept = tensors, result
        for a, b in zip(first, tensors, strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"order {order} changes the result"
    return kept


@contextmanager
def dispatching() -> Iterator[None]:
    """`draft_block` and `accept` send CPU tensors to these kernels, as they send a GPU's to the compiled ones."""
    launch._device_type = "cpu"
    try:
        yield
    finally:
        launch._device_type = "cuda"


def flatten(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result.contiguous()]
    if isinstance(result, tuple | list):
        return [t for item in result for t in flatten(item)]
    if hasattr(result, "__dataclass_fields__"):
        # The inputs that a result carries along are not results.
        skip = ("base_logits", "w2")
        return [t for name in result.__dataclass_fields__ if name not in skip for t in flatten(getattr(result, name))]
    return []


def make_head(
    kind: str, vocab: int, rank: int, hidden: int, dtype: torch.dtype, activation: str = "none", first: bool = True
) -> MarkovHead:
    g = torch.Generator().manual_seed(3)
    rows, columns = {"vanilla": (0, 0), "gated": (rank, hidden + rank), "rnn": (3 * rank, hidden + 2 * rank)}[kind]
    scale = rank**-0.5

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    joint = (weights(rows, columns) * scale).to(dtype) if rows else None
    bias = torch.randn(rows, generator=g) if rows else None
    return MarkovHead(
        kind,  # type: ignore[arg-type]
        weights(vocab, rank),
        (weights(vocab, rank) * 2 * scale).to(dtype),
        joint,
        bias,
        activation,  # type: ignore[arg-type]
        first,
    )


def make_confidence(hidden: int, rank: int, with_markov: bool = True) -> ConfidenceHead:
    g = torch.Generator().manual_seed(4)
    weight = torch.randn(1, hidden + (rank if with_markov else 0), generator=g) * 0.2
    return ConfidenceHead(weight, torch.tensor([0.3]), with_markov)


def make_noise(batch: int) -> Noise:
    return Noise(0x1234_5678_9ABC_DEF0, torch.arange(batch) * 1_000_003 - 5, torch.arange(batch) + 2**31)


def noise_of(noise: Noise, request: int) -> tuple[int, int, int]:
    return noise.seed, int(noise.streams[request]), int(noise.rounds[request])


def make_logits(batch: int, gamma: int, vocab: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows with a few large entries, masked ones and ties, inside a wider tensor (free strides)."""
    g = torch.Generator().manual_seed(seed)
    pad = 8 if vocab % 8 == 0 else 3
    wide = torch.full((batch, gamma + 1, vocab + pad), float("nan"))
    base = torch.randn(batch, gamma, vocab, generator=g) * 3
    base[:, :, 5] = 9.0
    base[:, :, vocab - 1] = 9.0
    base[:, :, 7:11] = float("-inf")
    wide[:, :gamma, :vocab] = base
    return wide.to(dtype)[:, :gamma, :vocab]
