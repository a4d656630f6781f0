"""Anchors, blocks and the attention mask of a training batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.train.data import Row
from sglang_dspark.train.target import RowFeatures


@dataclass
class Batch:
    """S rows, A blocks each, gamma positions a block (Q = A * gamma), contexts padded to C. N positions have a label.

    Attributes:
        features: [S, C, K*H], zero where padded.
        input_ids: int64 [S, Q], `[anchor, MASK, ...]` per block.
        positions: int64 [S, Q].
        mask: bool [S, 1, Q, C + Q].
        kept: int64 [N], the labelled positions of the flattened [S * Q].
        labels, previous: int64 [N], the token at the position and the one before it.
        slot: int64 [N], 0..gamma-1, the place in the block.
        top_ids: int64 [N, T]; top_probs: float32 [N, T]. The target's distribution of the label.
    """

    features: Tensor
    input_ids: Tensor
    positions: Tensor
    mask: Tensor
    kept: Tensor
    labels: Tensor
    previous: Tensor
    slot: Tensor
    top_ids: Tensor
    top_probs: Tensor

    def previous_by_block(self, gamma: int) -> Tensor:
        """int64 [S * A, gamma]: `previous` in the blocks' layout, 0 where there is no label."""
        flat = torch.zeros(self.input_ids.numel(), dtype=torch.long)
        flat[self.kept] = self.previous
        return flat.view(-1, gamma)


def sample_anchors(row: Row, count: int, generator: torch.Generator) -> Tensor:
    """int64 [<= count], ascending, distinct positions of `row.anchors`; all of them where the row is short."""
    picked = torch.randperm(len(row.anchors), generator=generator)[:count]
    return picked.sort().values + row.anchors.start


def attention_mask(anchors: Tensor, valid: Tensor, context: int, gamma: int) -> Tensor:
    """Which keys each query of a block may see: the context strictly before its anchor, and its own block.

    Args:
        anchors: int64 [S, A]; valid: bool [S, A], false for padding blocks (these see only themselves).

    Returns:
        bool [S, 1, A * gamma, context + A * gamma].
    """
    rows, blocks = anchors.shape
    limit = torch.where(valid, anchors, torch.zeros_like(anchors)).repeat_interleave(gamma, dim=1)
    before = torch.arange(context, device=anchors.device) < limit.unsqueeze(-1)
    block_of = torch.arange(blocks, device=anchors.device).repeat_interleave(gamma)
    own = (block_of.unsqueeze(0) == block_of.unsqueeze(1)).expand(rows, -1, -1)
    return torch.cat([before, own], dim=-1).unsqueeze(1)


def build_batch(
    rows: list[Row], features: list[RowFeatures], anchors: list[Tensor], gamma: int, mask_token_id: int
) -> Batch:
    """Lay the blocks of the given anchors out for one forward. Labels past a row's end are left out."""
    context = max(1, max(int(a.max()) if len(a) else 0 for a in anchors))
    blocks = max(len(a) for a in anchors)
    width = features[0].hidden.shape[-1]
    padded = torch.zeros(len(rows), context, width, dtype=features[0].hidden.dtype)
    starts = torch.zeros(len(rows), blocks, dtype=torch.long)
    valid = torch.zeros(len(rows), blocks, dtype=torch.bool)
    input_ids = torch.full((len(rows), blocks, gamma), mask_token_id, dtype=torch.long)
    kept, labels, previous, slot, top_ids, top_probs = [], [], [], [], [], []
    offsets = torch.arange(gamma)
    for index, (row, own, places) in enumerate(zip(rows, features, anchors, strict=True)):
        count, used = len(places), min(context, own.hidden.shape[0])
        padded[index, :used] = own.hidden[:used]
        starts[index, :count], valid[index, :count] = places, True
        tokens = torch.tensor(row.tokens)
        input_ids[index, :count, 0] = tokens[places]
        before = places.unsqueeze(1) + offsets  # the position whose successor is the label
        inside = before < len(tokens) - 1
        slots = offsets.expand(count, -1)[inside]
        flat = (torch.arange(count).unsqueeze(1) * gamma + offsets)[inside]
        before = before[inside]
        kept.append(flat + index * blocks * gamma)
        labels.append(tokens[before + 1])
        previous.append(tokens[before])
        slot.append(slots)
        top_ids.append(own.top_ids[before - len(row.p)].long())
        top_probs.append(own.top_probs[before - len(row.p)].float())
    positions = (starts.unsqueeze(-1) + offsets).flatten(1)
    mask = attention_mask(starts, valid, context, gamma)
    joined = (torch.cat(part) for part in (kept, labels, previous, slot, top_ids, top_probs))
    return Batch(padded, input_ids.flatten(1), positions, mask, *joined)
