"""One rank of the vocabulary-sharded draft, a process of its own: `sharded_process.py RANK RANKS STORE OUT`."""

from __future__ import annotations

import dataclasses
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))
import sharded_cases

from sglang_dspark.ops.draft_sharded import VocabShards, draft_block_sharded


def main(rank: int, ranks: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=ranks, rank=rank)
    results = {}
    for case in sharded_cases.CASES:
        for even in (True, False):
            shards = VocabShards(sharded_cases.bounds(case.vocab, ranks, even), dist.group.WORLD)
            first, end = shards.own
            arguments = case.arguments()
            if not case.whole_w2:
                arguments[2] = dataclasses.replace(arguments[2], w2=arguments[2].w2[first:end].clone())
            base = case.base()[..., first:end]
            results[case.name, even] = draft_block_sharded(
                base, *arguments, support=case.support, shards=shards, filters=case.filter()
            )
    results["errors"] = errors(ranks)
    dist.destroy_process_group()
    torch.save(results, out)


def errors(ranks: int) -> list[str]:
    """Messages of calls that must be refused before anything is exchanged."""
    case = sharded_cases.CASES[0]
    arguments, group = case.arguments(), dist.group.WORLD
    shards = VocabShards(sharded_cases.bounds(case.vocab, ranks, True), group)
    first, end = shards.own
    base = case.base()
    calls = (
        lambda: VocabShards((0, case.vocab), group),
        lambda: VocabShards((0, *(case.vocab for _ in range(ranks))), group),
        lambda: draft_block_sharded(base, *arguments, support=8, shards=shards),
        lambda: draft_block_sharded(base[..., first:end], *arguments, support=None, shards=shards),
        lambda: draft_block_sharded(
            base[..., first:end], *arguments[:2], dataclasses.replace(arguments[2], w2=arguments[2].w2[:7]),
            *arguments[3:], support=8, shards=shards,
        ),
    )  # fmt: skip
    messages = []
    for call in calls:
        try:
            call()
            messages.append("accepted")
        except ValueError as error:
            messages.append(str(error))
    return messages


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
