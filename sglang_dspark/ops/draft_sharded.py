"""The sequential part under tensor parallelism: base logits, and W2 if wanted, are shards of the vocabulary.

Each rank finds the C best base logits of its own tokens at every position, the ranks exchange them once, and every rank
keeps the same C best of all and walks the same loop. A step needs no communication, and the tokens are those of the
unsharded draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.ops.checks import check_draft, rows_contiguous
from sglang_dspark.ops.draft_block import ConfidenceHead, DraftBlock, DraftFilter, MarkovHead
from sglang_dspark.ops.draft_candidates import Candidates, best_candidates, draft_candidates
from sglang_dspark.ops.noise import Noise

# Below every key: what pads a shard that has fewer than C tokens.
_NO_KEY = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class VocabShards:
    """How the vocabulary lies on the ranks of a group: rank i has tokens `bounds[i]` to `bounds[i + 1] - 1`.

    Raises:
        ValueError: bounds that are not 0 and one rising end for each rank.
    """

    bounds: tuple[int, ...]
    group: dist.ProcessGroup

    def __post_init__(self) -> None:
        ranks = dist.get_world_size(self.group)
        if len(self.bounds) != ranks + 1 or self.bounds[0] != 0 or min(self._widths()) < 1:
            raise ValueError(f"bounds: expected 0 and {ranks} rising ends, one a rank, got {self.bounds}")

    @property
    def vocab_size(self) -> int:
        return self.bounds[-1]

    @property
    def own(self) -> tuple[int, int]:
        """First token of this rank and the one past its last."""
        rank = dist.get_rank(self.group)
        return self.bounds[rank], self.bounds[rank + 1]

    @property
    def widest(self) -> int:
        """Tokens of the largest shard."""
        return max(self._widths())

    def _widths(self) -> list[int]:
        return [b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False)]


def draft_block_sharded(
    base_logits: Tensor,
    anchors: Tensor,
    hidden: Tensor,
    head: MarkovHead,
    confidence_head: ConfidenceHead | None,
    temperatures: Tensor | None,
    noise: Noise | None = None,
    *,
    support: int | None,
    shards: VocabShards,
    filters: DraftFilter | None = None,
    isa: str | None = None,
) -> DraftBlock:
    """`draft_block` with sparse support on every rank of a group, bit for bit what it draws from the whole vocabulary.

    One exchange a round: 8 bytes a candidate. With a sharded W2 a second one, B γ C rows of it.

    Args:
        base_logits: `[B, γ, V_own]`, this rank's tokens only.
        head: `w1` whole; `w2` whole, `[V, r]`, or this rank's rows, `[V_own, r]`, the same choice on every rank.
        support: C; None, the dense form, is refused: it would exchange rows of the whole vocabulary at every step.
        shards: whose tokens are where.

    All else as in `draft_block`, and the same on every rank to the last bit: each computes the loop for itself.

    Raises:
        ValueError: names the argument, what it is and what was expected, before anything is exchanged.
    """
    if support is None:
        raise ValueError("support: expected a number of candidates, got None; the dense form has no sharded draft")
    first, end = shards.own
    if base_logits.ndim != 3 or base_logits.shape[2] != end - first:
        raise ValueError(f"base_logits: expected [B, gamma, {end - first}], got {tuple(base_logits.shape)}")
    whole = head.w2.shape[0] == shards.vocab_size
    check_draft(
        base_logits, anchors, hidden, head, confidence_head, temperatures, noise, support, filters, shards.vocab_size,
        shards.vocab_size if whole else end - first,
    )  # fmt: skip
    if noise is None:
        zeros = torch.zeros(len(anchors), dtype=torch.int64, device=anchors.device)
        noise = Noise(0, zeros, zeros)
    ids, values = _exchange(*_local_candidates(rows_contiguous(base_logits), support, shards), support, shards)
    rows = None if whole else _rows_of_group(ids, head.w2, shards)
    return draft_candidates(
        Candidates(ids, values, rows), shards.vocab_size, anchors, hidden, head, confidence_head, temperatures, noise,
        filters or DraftFilter(), isa,
    )  # fmt: skip


def _local_candidates(base_logits: Tensor, support: int, shards: VocabShards) -> tuple[Tensor, Tensor]:
    """The best of this rank's tokens, padded to what the widest shard sends.

    Returns:
        ids `[B, γ, N]` int32 of the whole vocabulary, -1 in the padding; values `[B, γ, N]` float32, all NaN where a
        base logit is NaN or +inf.
    """
    first, end = shards.own
    size, sent = min(support, end - first), min(support, shards.widest)
    ids, values = best_candidates(base_logits, size)
    padding = (0, sent - size)
    return F.pad(ids + first, padding, value=-1), F.pad(values, padding, value=float("-inf"))


def _exchange(ids: Tensor, values: Tensor, support: int, shards: VocabShards) -> tuple[Tensor, Tensor]:
    """The C best of all ranks' candidates, the lower token of equal ones: ids `[B, γ, C]` ascending, and values."""
    mine = torch.stack([ids, values.view(torch.int32)])
    everyone = mine.new_empty((len(shards.bounds) - 1, *mine.shape))
    dist.all_gather(list(everyone.unbind()), mine, group=shards.group)
    # [2, B, γ, ranks * N]: ranks in the order of their tokens, so ids ascend over the last axis but for the padding.
    merged = everyone.permute(1, 2, 3, 0, 4).flatten(3)
    ids, values = merged[0], merged[1].contiguous().view(torch.float32)
    # One integer has the whole order: by value (0.0 and -0.0 alike), then by the lower token.
    bits = (values + 0.0).view(torch.int32)
    order = torch.where(bits >= 0, bits, bits ^ 0x7FFF_FFFF).long()
    keys = torch.where(ids < 0, _NO_KEY, (order << 32) + (0x7FFF_FFFF - ids.long()))
    best = keys.topk(min(support, shards.vocab_size), dim=-1).indices.sort(dim=-1).values
    spoiled = values.isnan().any(dim=-1, keepdim=True)
    lowest = torch.arange(best.shape[-1], device=ids.device, dtype=torch.int32)
    return (
        torch.where(spoiled, lowest, ids.gather(2, best)),
        torch.where(spoiled, float("nan"), values.gather(2, best)),
    )


def _rows_of_group(ids: Tensor, w2: Tensor, shards: VocabShards) -> Tensor:
    """Rows `[B, γ, C, r]` of a W2 that lies in parts on the ranks, each given by the rank that has it."""
    first, end = shards.own
    mine = ((ids >= first) & (ids < end)).unsqueeze(-1)
    rows = torch.where(mine, w2[(ids.long() - first).clamp(0, end - first - 1)], 0.0).contiguous()
    # Only one rank's bytes differ from zero, so their sum is that rank's row to the last bit.
    dist.all_reduce(rows.view(torch.uint8), group=shards.group)
    return rows
