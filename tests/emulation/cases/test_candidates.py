"""Candidate selection against a stable sort."""

from __future__ import annotations

import emulated
import pytest
import torch

from sglang_dspark.ops import cuda


@pytest.mark.parametrize(
    ("vocab", "support", "dtype"),
    [
        (1009, 64, torch.float32),
        (1016, 1, torch.bfloat16),
        (1009, 1009, torch.float16),
        (12288, 100, torch.bfloat16),  # several slices a row, whole vectors, many ties
        (9001, 300, torch.float32),  # several slices, single elements
    ],
)
def test_equals_a_stable_sort(vocab: int, support: int, dtype: torch.dtype) -> None:
    base = emulated.make_logits(2, 2, vocab, dtype)
    ids, values, bad = emulated.in_every_order(lambda: cuda.select_candidates(base, support))
    order = torch.sort(base.float(), dim=-1, descending=True, stable=True).indices[..., :support].sort().values
    assert torch.equal(ids.long(), order)
    assert torch.equal(values, base.float().gather(2, order))
    assert not bad.any()


@pytest.mark.parametrize("ascending", [False, True])
def test_sorted_rows_compact_often_and_stay_exact(ascending: bool) -> None:
    base = torch.linspace(-5, 5, 10000).view(1, 1, -1)
    base = base if ascending else base.flip(-1)
    ids, _, _ = emulated.in_every_order(lambda: cuda.select_candidates(base, 50), (1,))
    expected = torch.arange(9950, 10000) if ascending else torch.arange(50)
    assert ids.flatten().tolist() == expected.tolist()


def test_rows_that_cannot_be_drawn_from_are_marked() -> None:
    base = torch.randn(5, 1, 9001)
    base[0, 0, 8000] = float("nan")
    base[1, 0, 3] = float("inf")
    base[2] = float("-inf")
    base[3, 0, 100:] = float("-inf")
    _, values, bad = emulated.in_every_order(lambda: cuda.select_candidates(base, 128))
    assert bad.flatten().tolist() == [1, 1, 1, 0, 0]
    assert values[3].isinf().sum() == 28


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="support"):
        cuda.select_candidates(torch.randn(1, 1, 10), 11)
    with pytest.raises(ValueError, match="base_logits"):
        cuda.select_candidates(torch.randn(1, 10), 1)
