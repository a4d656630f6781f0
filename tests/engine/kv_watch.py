"""Watch the KV pools of an engine, target's and draft's: slots without content hold NaN, shared ones keep their bits.

Imported by every process of an engine whose environment names a file in `WATCH`; what was done is noted there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

WATCH = "DSPARK_TESTS_WATCH"

_pools: list[Any] = []
# Of a prefix's tokens: its slots and what they held.
_shared: dict[tuple[int, ...], tuple[torch.Tensor, list[torch.Tensor]]] = {}


def _note(what: str, count: int) -> None:
    with Path(os.environ[WATCH]).open("a") as file:
        file.write(f"{what} {count}\n")


def notes(path: Path) -> dict[str, int]:
    """Sums of what was noted."""
    sums: dict[str, int] = {}
    for line in path.read_text().splitlines():
        what, count = line.rsplit(" ", 1)
        sums[what] = sums.get(what, 0) + int(count)
    return sums


def _buffers() -> list[torch.Tensor]:
    return [buffer for pool in _pools for buffer in (*pool.k_buffer, *pool.v_buffer)]


def _poison(slots: torch.Tensor) -> None:
    """NaN, since no mask hides it: 0 * NaN is NaN."""
    for buffer in _buffers():
        buffer[slots] = float("nan")
    for tokens in [tokens for tokens, (held, _) in _shared.items() if bool(torch.isin(held, slots).any())]:
        del _shared[tokens]
    _note("poisoned", slots.numel())


def _compare(tokens: tuple[int, ...], slots: torch.Tensor) -> None:
    """A prefix found in the cache holds what it held when it was found before."""
    values = [buffer[slots].clone() for buffer in _buffers()]
    assert all(bool(torch.isfinite(part).all()) for part in values), "a cached slot was never written"
    for known, (held, before) in _shared.items():
        length = next((i for i, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), len(known))
        length = min(length, len(tokens))
        same = held[:length] == slots[:length]
        for old, new in zip(before, values, strict=True):
            bits = (part[:length][same].view(torch.int32) for part in (old, new))
            assert torch.equal(*bits), "a cached slot was written again"
        _note("compared", int(same.sum()))
    _shared[tokens] = slots, values


def watch() -> None:
    """Change the engine's classes, in this process."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator as Paged
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator as Single
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    create, free, release, next_round = (
        MHATokenToKVPool._create_buffers, Single.free, Paged._release_page_ids, Req.init_next_round_input
    )  # fmt: skip

    def create_poisoned(self: Any) -> None:
        create(self)
        _pools.append(self)
        for buffer in (*self.k_buffer, *self.v_buffer):
            buffer.fill_(float("nan"))

    def free_and_poison(self: Any, free_index: torch.Tensor) -> None:
        free(self, free_index)
        if self.free_group is None and free_index.numel():
            _poison(free_index.long())

    def release_and_poison(self: Any, *page_ids: torch.Tensor) -> None:
        release(self, *page_ids)
        pages = torch.cat(page_ids).long()
        _poison((pages[:, None] * self.page_size + torch.arange(self.page_size)).flatten())

    def find_and_compare(self: Any, tree_cache: Any = None, *args: Any, **kwargs: Any) -> None:
        next_round(self, tree_cache, *args, **kwargs)
        if tree_cache is not None and self.prefix_len:
            tokens = tuple(self.full_untruncated_fill_ids[: self.prefix_len])
            _compare(tokens, tree_cache.prefix_device_indices(self).long())

    MHATokenToKVPool._create_buffers = create_poisoned
    Single.free = free_and_poison
    Paged._release_page_ids = release_and_poison
    Req.init_next_round_input = find_and_compare


if os.environ.get(WATCH):
    watch()
