"""What the target emits for a seeded request: a function of seed, place and p alone (algorithm, section 8)."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_dspark.ops.checks import check_temperatures, check_vector, rows_contiguous
from sglang_dspark.ops.extension import extension, warn_missing
from sglang_dspark.ops.noise import seeded_hash

_LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def seeded_pick(
    target_logits: Tensor,
    p: Tensor | None,
    temperatures: Tensor,
    seeds: Tensor,
    places: Tensor,
    *,
    isa: str | None = None,
) -> Tensor:
    """`argmax(log p + g)` of each row, with the noise g that the engine's sampler gives a seeded request.

    The noise is indexed by token id. The engine's filtered sampler indexes it by rank instead, and only when some
    request of the batch filters, so that a seed's text depends on the batch; here it never does.

    Args:
        target_logits: `[M, V]`, read where `p` is None or the temperature is 0.
        p: `[M, V]` float32, not necessarily normalised, what plain decoding samples from; None: `softmax(logits / T)`.
        temperatures: `[M]` float32, 0 for argmax.
        seeds: `[M]` int64.
        places: `[M]` int64, the place in the sequence of the token before the one that is picked.
        isa: as in `draft_block`.

    Returns:
        `[M]` int64.

    Raises:
        ValueError: names the argument, what it is and what was expected.
    """
    rows = target_logits.shape[0]
    if target_logits.ndim != 2 or target_logits.shape[1] < 1:
        raise ValueError(f"target_logits: expected [M, V], got {tuple(target_logits.shape)}")
    if p is not None and (p.shape != target_logits.shape or p.dtype != torch.float32):
        raise ValueError(f"p: expected float32 {tuple(target_logits.shape)}, got {p.dtype} {tuple(p.shape)}")
    check_temperatures(temperatures, rows)
    check_vector("seeds", seeds, rows, (torch.int64,))
    check_vector("places", places, rows, (torch.int64,))
    native = extension()
    if native is None or target_logits.device.type != "cpu" or target_logits.dtype not in _LOGIT_DTYPES:
        if native is None:
            warn_missing("seeded_pick")
        return seeded_pick_torch(target_logits, p, temperatures, seeds, places)
    tokens = torch.empty(rows, dtype=torch.int64)
    native.seeded_pick(
        rows_contiguous(target_logits), None if p is None else rows_contiguous(p), temperatures.contiguous(),
        seeds.contiguous(), places.contiguous(), tokens, isa or "", torch.get_num_threads(),
    )  # fmt: skip
    return tokens


def seeded_pick_torch(
    target_logits: Tensor, p: Tensor | None, temperatures: Tensor, seeds: Tensor, places: Tensor
) -> Tensor:
    """Arguments as `seeded_pick`, already checked."""
    logits = torch.where(target_logits.isnan(), float("-inf"), target_logits.float())
    best = logits.argmax(dim=-1)
    sampled = (temperatures > 0) & (logits.amax(dim=-1).isfinite() if p is None else True)
    if p is None:
        p = torch.softmax(logits / torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(1), dim=-1)
    hashed = seeded_hash(seeds, places, torch.arange(p.shape[1], device=p.device))
    exponential = -(hashed.double() / (2**32 - 1)).log()
    exponential = exponential.clamp(2.0**-32, torch.finfo(torch.float64).max)
    picked = (p.double().log() - exponential.log()).argmax(dim=-1)
    return torch.where(sampled, picked, best)
