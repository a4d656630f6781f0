"""Filters are joint, exact on ties of rank, and the shortlist never changes the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_dspark.ops import target_probs as module
from sglang_dspark.ops.categorical import draw
from sglang_dspark.ops.target_probs import Filters, target_probs


def reference(logits: np.ndarray, temperature: float, k: int, top_p: float, min_p: float) -> np.ndarray:
    x = logits.astype(np.float64) / temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    ranked = p[order]
    keep = np.arange(len(p)) < k
    keep &= np.cumsum(ranked) - ranked <= top_p
    keep &= ranked >= ranked[0] * min_p
    out = np.zeros_like(p)
    out[order[keep]] = ranked[keep]
    return out / out.sum()


@pytest.mark.parametrize("shortlist", [8, 4096])
@pytest.mark.known_case(18)
def test_matches_the_reference(shortlist: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTLIST", shortlist)
    g = torch.Generator().manual_seed(0)
    settings = [
        (1.0, 5, 1.0, 0.0),
        (0.3, 1 << 30, 0.9, 0.0),
        (1.7, 1 << 30, 0.99, 0.02),
        (1.0, 3, 0.5, 0.2),
        (100.0, 90, 1.0, 0.0),
    ]
    logits = torch.randn(len(settings), 200, generator=g) * 4
    temperature, k, top_p, min_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    p = target_probs(logits, temperature, Filters(k, top_p, min_p))
    for row, setting in enumerate(settings):
        np.testing.assert_allclose(p[row].numpy(), reference(logits[row].numpy(), *setting), rtol=1e-4, atol=1e-8)


def test_no_rows_and_no_filters() -> None:
    assert target_probs(torch.zeros(0, 5), torch.zeros(0), Filters()).shape == (0, 5)
    torch.testing.assert_close(target_probs(torch.zeros(1, 4), torch.ones(1), Filters()), torch.full((1, 4), 0.25))


def test_draw_never_picks_weight_zero() -> None:
    weights = torch.tensor([[0.0, 1e-30, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]).repeat(2000, 1)
    picked = draw(weights, torch.Generator().manual_seed(0))
    assert set(picked[0::2].tolist()) == {1}
    assert set(picked[1::2].tolist()) == {2}
