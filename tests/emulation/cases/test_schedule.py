"""The scheduler's kernel against `schedule/prefix.py`, length for length."""

from __future__ import annotations

import emulated
import numpy as np
import pytest
import torch

from sglang_dspark.ops import cuda
from sglang_dspark.schedule import prefix


def problem(requests: int, gamma: int, seed: int, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.2, 1.0, (requests, gamma)).astype(np.float32)
    if ties:
        confidence = np.round(confidence * 4) / 4
    for r, value in zip(rng.integers(0, requests, 4), (np.nan, -0.1, 1.5, 0.0), strict=True):
        confidence[r, rng.integers(0, gamma)] = value
    limits = rng.integers(0, gamma + 2, requests)
    tokens = np.arange(requests * (1 + gamma) + 1)
    seconds = 1.0 + 0.02 * tokens + 0.7 * (tokens > requests * 2) if ties else 1.0 + 1e-4 * tokens**1.5
    return confidence, seconds, limits


@pytest.mark.parametrize(("requests", "gamma"), [(1, 1), (3, 7), (70, 5), (300, 7)])
@pytest.mark.parametrize("ties", [False, True])
def test_lengths_are_those_of_the_reference(requests: int, gamma: int, ties: bool) -> None:
    confidence, seconds, limits = problem(requests, gamma, 1, ties)
    earlier, _, earlier_limits = problem(requests, gamma, 2, ties)
    tensors = [torch.from_numpy(x) for x in (confidence, seconds, limits, earlier, earlier_limits)]
    orders = (0, 3) if requests > 100 else emulated.ORDERS
    lengths, admitted = emulated.in_every_order(lambda: cuda.schedule(*tensors[:3]), orders)
    expected = prefix.causal_scan(confidence, seconds, limits)
    assert lengths.tolist() == expected.tolist()
    assert admitted.item() == expected.sum()
    budget = prefix.best_budget(earlier, seconds, earlier_limits)
    lengths, admitted = emulated.in_every_order(lambda: cuda.schedule(*tensors), orders)
    expected = prefix.lagged_topk(confidence, budget, limits)
    assert lengths.tolist() == expected.tolist()
    assert admitted.item() == expected.sum()


def test_nothing_to_admit() -> None:
    confidence, seconds, limits = torch.zeros(3, 4), torch.ones(16, dtype=torch.float64), torch.full((3,), 4)
    assert cuda.schedule(confidence, seconds, limits)[0].tolist() == [0, 0, 0]
    assert cuda.schedule(confidence, seconds, limits, torch.ones(3, 4))[0].tolist() == [0, 0, 0]
    assert cuda.schedule(torch.ones(3, 4), seconds, limits, confidence)[0].tolist() == [0, 0, 0]
    assert cuda.schedule(torch.ones(3, 4), seconds, limits, torch.ones(3, 4))[0].tolist() == [4, 4, 4]
    assert cuda.schedule(torch.ones(0, 4), seconds, torch.ones(0, dtype=torch.int64))[0].tolist() == []
