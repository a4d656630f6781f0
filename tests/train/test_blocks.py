"""Anchors, masks and batches against brute force."""

from __future__ import annotations

import torch

from sglang_dspark.train.blocks import attention_mask, build_batch, sample_anchors
from sglang_dspark.train.data import Row
from sglang_dspark.train.target import RowFeatures


def test_mask_against_brute_force() -> None:
    anchors = torch.tensor([[2, 5, 9], [4, 7, 0]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    context, gamma = 10, 3
    mask = attention_mask(anchors, valid, context, gamma)
    assert mask.shape == (2, 1, 9, 19)
    for s in range(2):
        for q in range(9):
            for key in range(19):
                if key < context:
                    expected = bool(valid[s, q // gamma]) and key < int(anchors[s, q // gamma])
                else:
                    expected = (key - context) // gamma == q // gamma
                assert bool(mask[s, 0, q, key]) == expected, (s, q, key)
    assert mask.any(-1).all(), "a query that sees nothing would give NaN"


def test_anchors_are_responses_with_a_successor() -> None:
    row = Row("math", "a", 0.0, (1, 2, 3), (4, 5, 6, 7))
    generator = torch.Generator().manual_seed(0)
    assert sample_anchors(row, 10, generator).tolist() == [3, 4, 5]
    few = sample_anchors(row, 2, generator).tolist()
    assert len(set(few)) == 2
    assert set(few) <= {3, 4, 5}


def fake_features(row: Row, top: int = 2) -> RowFeatures:
    length, count = len(row.tokens) - 1, len(row.anchors)
    hidden = torch.arange(length).float().unsqueeze(1).expand(-1, 4).to(torch.bfloat16)
    ids = (torch.arange(count).unsqueeze(1) * 10 + torch.arange(top)).int()
    return RowFeatures(hidden, ids, torch.full((count, top), 0.5, dtype=torch.bfloat16))


def test_batch_against_brute_force() -> None:
    """Rows of different length, one with a single anchor: labels, predecessors, slots and distributions."""
    rows = [Row("a", "0", 0.0, (1, 2, 3), (10, 11, 12, 13, 14)), Row("b", "1", 0.0, (1, 2), (20, 21))]
    anchors = [torch.tensor([3, 5, 6]), torch.tensor([2])]
    gamma = 3
    batch = build_batch(rows, [fake_features(r) for r in rows], anchors, gamma, mask_token_id=99)
    expected = []
    for s, (row, places) in enumerate(zip(rows, anchors, strict=True)):
        for block, anchor in enumerate(places.tolist()):
            for k in range(gamma):
                label = anchor + k + 1
                if label < len(row.tokens):
                    flat = (s * 3 + block) * gamma + k
                    expected.append((flat, row.tokens[label], row.tokens[label - 1], k, (anchor + k - len(row.p)) * 10))
    columns = (batch.kept, batch.labels, batch.previous, batch.slot, batch.top_ids[:, 0])
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
    assert batch.input_ids[0].tolist() == [10, 99, 99, 12, 99, 99, 13, 99, 99]
    assert batch.positions[0].tolist() == [3, 4, 5, 5, 6, 7, 6, 7, 8]
    assert batch.features.shape == (2, 6, 4)
    assert batch.features[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.features[1, 3:].abs().sum() == 0
