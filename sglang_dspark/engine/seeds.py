"""Seeded requests: one text per seed, in any batch, with and without speculation (algorithm, section 8).

The engine reads a request's `sampling_seed` only under deterministic inference, and there indexes the noise of filtered
rows by rank whenever some request of the batch filters. Here every seeded request draws `argmax(log p + g)` with the
engine's noise by token id: in the worker's accept, and, through two hooks, wherever the engine's own sampler draws
(the token that ends a prefill, and plain serving).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.runtime_context import get_exec

from sglang_dspark.ops.seeded import seeded_pick
from sglang_dspark.ops.target_probs import Filters, filtered

_SAMPLING_INFO = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
_SAMPLER = "sglang.srt.layers.sampler.Sampler._sample_from_probs"

# Marks a request without a seed among those of a batch. As a seed it is taken for its neighbour.
_NO_SEED = -(2**63)


class _Seen:
    """Whether this process has had a seeded request: until then nothing reads the device to look for one."""

    any = False


def seed_of(req: Any) -> int | None:
    """The request's own seed."""
    seed = req.sampling_params.sampling_seed
    return None if seed is None else max(int(seed), _NO_SEED + 1)


def is_coupled(req: Any, coupling: str) -> bool:
    """Whether draft and target pick the request's tokens with the same noise."""
    return coupling == "gumbel" or seed_of(req) is not None


def drawn_seed(server_seed: int, stream: int) -> int:
    """A seed for a request without one, under `--dspark-coupling gumbel`: new for every request, alike on all ranks."""
    return random.Random(f"{server_seed}:{stream}").getrandbits(63)


def register_hooks() -> None:
    """Register both hooks of this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_SAMPLING_INFO, with_seeds, HookType.AROUND)
    HookRegistry.register(_SAMPLER, sample_from_probs, HookType.AROUND)


def with_seeds(original: Callable[..., Any], cls: type, batch: Any, vocab_size: int) -> Any:
    """Give every batch the field the engine fills under deterministic inference only.

    Every one, because the engine joins the field of two batches only when both have it. Batches of other speculative
    algorithms are left alone: their own code reads the field.
    """
    info = original(cls, batch, vocab_size)
    algorithm = getattr(batch, "spec_algorithm", None)
    mine = algorithm is None or algorithm.is_none() or algorithm.is_dspark()
    if info.sampling_seed is None and mine:
        seeds = [seed_of(req) for req in batch.reqs]
        _Seen.any = _Seen.any or any(seed is not None for seed in seeds)
        info.sampling_seed = torch.tensor(
            [_NO_SEED if seed is None else seed for seed in seeds], dtype=torch.int64, device=batch.device
        )
    return info


def sample_from_probs(
    original: Callable[..., Any], sampler: Any, probs: torch.Tensor, info: Any, positions: torch.Tensor, simple: bool
) -> Any:
    """The engine's draw, then the seeded rows' own in their places.

    Args:
        probs: `[B, V]` after temperature, before filters.
        positions: `[B]`, places in the sequence of each request's last token.
        simple: no request of the batch filters.
    """
    seeds = info.sampling_seed
    if seeds is None or get_exec().deterministic.enable_deterministic_inference:
        return original(sampler, probs, info, positions, simple)
    unseeded = copy.copy(info)
    unseeded.sampling_seed = None
    tokens, capture = original(sampler, probs, unseeded, positions, simple)
    if not _Seen.any:
        return tokens, capture
    rows = (seeds != _NO_SEED).nonzero().squeeze(1)
    if len(rows) == 0:
        return tokens, capture
    p = probs[rows].float()
    if not simple:
        p = filtered(p, Filters(top_k=info.top_ks[rows], top_p=info.top_ps[rows], min_p=info.min_ps[rows]))
    ones = torch.ones(len(rows), device=p.device)
    picked = seeded_pick(p, p, ones, seeds[rows], positions[rows].long())
    tokens = tokens.index_copy(0, rows, picked.to(tokens.dtype))
    # The weight captured for a sampling mask is that of the token the engine drew.
    return tokens, None if capture is None else capture._replace(selected_weight=None)


def coupled_streams(
    reqs: Sequence[Any], streams: list[int], server_seed: int, coupling: str
) -> list[int | None] | None:
    """The seed each request of a batch is coupled by, None where it is not; None when no request is."""
    seeds = [seed_of(req) for req in reqs]
    if coupling == "gumbel":
        pairs = zip(seeds, streams, strict=True)
        return [drawn_seed(server_seed, stream) if seed is None else seed for seed, stream in pairs]
    return seeds if any(seed is not None for seed in seeds) else None
