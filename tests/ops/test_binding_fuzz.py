"""The binding under wrong arguments: a ValueError or TypeError before anything runs, no crash, no write outside.

Start from a valid call, replace up to three arguments by something else, and call the extension directly. Outputs lie
between guard elements, which must survive.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch

from sglang_dspark.ops.extension import extension

# A call takes milliseconds, most of them to raise. `make sanitize`, where a read outside is found too, makes more.
TRIALS = int(os.environ.get("DSPARK_FUZZ_TRIALS", "300"))
B, GAMMA, V, R, H, C = 2, 3, 70, 5, 4, 6
GUARD = 64

native = extension()
pytestmark = pytest.mark.skipif(native is None, reason="the extension is not built")


def guarded(shape: tuple[int, ...], dtype: torch.dtype, guards: list[torch.Tensor]) -> torch.Tensor:
    size = int(np.prod(shape))
    whole = torch.full((size + 2 * GUARD,), 77).to(dtype)
    guards.append(whole)
    return whole[GUARD : GUARD + size].view(shape)


def head(rng: random.Random) -> Any:
    kind = rng.choice(["vanilla", "gated", "rnn", "lstm", ""])
    joint = rng.choice([None, torch.zeros(R, H + R), torch.zeros(3 * R, H + 2 * R), torch.zeros(1)])
    return native.Head(
        kind, rng.choice(["none", "silu", "relu"]), rng.random() < 0.5, tensor(rng), tensor(rng), joint,
        rng.choice([None, torch.zeros(R), torch.zeros(3 * R)]),
    )  # fmt: skip


def tensor(rng: random.Random) -> Any:
    """Anything that might be handed over by mistake."""
    shape = [rng.choice([0, 1, 2, 3, 4, 5, 6, 9, V, GAMMA]) for _ in range(rng.randint(0, 4))]
    dtype = rng.choice(
        [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool]
    )
    made = torch.zeros(shape, dtype=dtype)
    if made.ndim > 1 and rng.random() < 0.3:
        made = made.transpose(0, -1)
    if made.ndim and rng.random() < 0.2:
        made = made.expand(made.shape)[..., ::2] if made.shape[-1] else made
    if dtype == torch.int64 and rng.random() < 0.5:
        made = made + rng.choice([-1, V, 2**62, -(2**63)])
    return rng.choice([made, made, made, made, None, 3, "x", np.zeros(3), torch.zeros(2, 2, device="meta")])


def valid_draft(sparse: bool, guards: list[torch.Tensor], form: str) -> list[Any]:
    weights = torch.randn(V, R)
    common = [
        torch.randn(B, GAMMA, V), torch.zeros(B, dtype=torch.int64), torch.randn(B, GAMMA, H),
        native.Head("vanilla", "none", True, weights, weights, None, None), torch.randn(1, H + R), 0.0, True,
        torch.ones(B), 5, torch.zeros(B, dtype=torch.int64), torch.zeros(B, dtype=torch.int64),
        torch.tensor([True, False]),
    ]  # fmt: skip
    outputs = [
        guarded((B, GAMMA), torch.int64, guards), guarded((B,), torch.int64, guards),
        guarded((B, GAMMA), torch.float32, guards),
    ]  # fmt: skip
    if sparse:
        ids, probs = guarded((B, GAMMA, C), torch.int32, guards), guarded((B, GAMMA, C), torch.float32, guards)
        if form:  # candidates chosen elsewhere, with rows of their own or those of their tokens
            ids.copy_(torch.arange(C))
            rows = torch.randn(B * GAMMA * C, R) if form == "gathered" else weights
            common[0] = torch.randn(B, GAMMA, C)
            common[3] = native.Head("vanilla", "none", True, weights, rows, None, None)
        return [*common, None, None, None, *outputs, ids, probs, V if form else 0, form == "gathered", "", 1]
    latents = guarded((B, GAMMA, native.arranged_size(R)), torch.float32, guards)
    return [*common, *outputs, latents, *(guarded((B, GAMMA), torch.float32, guards) for _ in range(3)), "", 1]


def valid_accept(guards: list[torch.Tensor], form: str) -> list[Any]:
    q: Any = None
    if form == "sparse":
        q = (torch.arange(C, dtype=torch.int32).expand(B, GAMMA, C).contiguous(), torch.full((B, GAMMA, C), 1 / C))
    elif form == "dense":
        latents = torch.zeros(B, GAMMA, native.arranged_size(R))
        flat = torch.zeros(B, GAMMA)
        q = (torch.zeros(B, GAMMA, V), torch.zeros(V, R), True, latents, flat, flat, flat)
    return [
        torch.randn(B * 2, V), None, torch.tensor([0, 2]), torch.tensor([1, 1]),
        torch.zeros(B, GAMMA, dtype=torch.int64), torch.full((B,), GAMMA), torch.ones(B), 5,
        torch.zeros(B, dtype=torch.int64), torch.zeros(B, dtype=torch.int64), torch.tensor([True, False]), q,
        guarded((B, GAMMA + 1), torch.int64, guards), guarded((B,), torch.int64, guards),
        guarded((B,), torch.int64, guards), "", 1,
    ]  # fmt: skip


def valid_pick(guards: list[torch.Tensor]) -> list[Any]:
    places = torch.zeros(B, dtype=torch.int64)
    return [
        torch.randn(B, V), torch.rand(B, V), torch.ones(B), places, places, guarded((B,), torch.int64, guards), "", 1,
    ]  # fmt: skip


def check_guards(guards: list[torch.Tensor]) -> None:
    for whole in guards:
        assert bool((whole[:GUARD] == 77).all())
        assert bool((whole[-GUARD:] == 77).all())


def outputs_of(arguments: list[Any], guards: list[torch.Tensor]) -> set[int]:
    starts = {whole.data_ptr() + GUARD * whole.element_size() for whole in guards}
    return {i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.data_ptr() in starts}


@pytest.mark.parametrize(
    "call",
    [
        "draft_sparse",
        "draft_sparse chosen",
        "draft_sparse gathered",
        "draft_dense",
        "accept none",
        "accept sparse",
        "accept dense",
        "seeded_pick",
    ],
)
def test_wrong_arguments_raise_and_nothing_else(call: str) -> None:
    rng = random.Random(call)
    name, _, form = call.partition(" ")
    ran = refused = 0
    for trial in range(TRIALS):
        guards: list[torch.Tensor] = []
        if name == "accept":
            arguments = valid_accept(guards, form)
        elif name == "seeded_pick":
            arguments = valid_pick(guards)
        else:
            arguments = valid_draft(name == "draft_sparse", guards, form)
        for _ in range(rng.randint(0, 3) if trial else 0):
            index = rng.randrange(len(arguments))
            replaced = head(rng) if type(arguments[index]).__name__ == "Head" else tensor(rng)
            # Small integers and strings are replaced by their like, so that what is reached is the check behind them.
            if isinstance(arguments[index], int) and not isinstance(arguments[index], bool):
                replaced = rng.choice([0, 1, -1, 2**63, 2**64 - 1, 2**31, 10**30])
            elif isinstance(arguments[index], str):
                replaced = rng.choice(["", "avx2", "sse", "scalar"])
            elif isinstance(arguments[index], tuple):
                parts = list(arguments[index])
                parts[rng.randrange(len(parts))] = tensor(rng)
                replaced = tuple(parts[: rng.randint(0, len(parts))]) if rng.random() < 0.2 else tuple(parts)
            arguments[index] = replaced
        try:
            getattr(native, name)(*arguments)
            ran += 1
        except (ValueError, TypeError):
            refused += 1
        check_guards(guards)
    assert ran > TRIALS / 15
    assert refused > TRIALS / 5


@pytest.mark.parametrize("name", ["causal_scan", "best_budget", "top_candidates"])
def test_wrong_arrays_raise_and_nothing_else(name: str) -> None:
    rng = random.Random(name)
    refused = 0
    for _ in range(TRIALS):
        confidence, seconds, limits = np.ones((3, 2), np.float32), np.ones(10), np.full(3, 2)
        arguments: list[Any] = [confidence, 4 if name == "top_candidates" else seconds, limits]
        for _ in range(rng.randint(1, 2)):
            shape = [rng.choice([0, 1, 2, 3, 9, 10, 300]) for _ in range(rng.randint(0, 3))]
            made = np.zeros(shape, dtype=rng.choice([np.float32, np.float64, np.int64, np.int8, np.bool_]))
            made = rng.choice([made, made.T, made[::2] if made.ndim else made, made[..., None]])
            arguments[rng.randrange(3)] = rng.choice([made, made, made, None, "x", 7, -3, [1, 2, 3]])
        try:
            getattr(native, name)(*arguments)
        except (ValueError, TypeError):
            refused += 1
    assert refused > TRIALS / 5
