"""Synthetic draws whose true acceptance probabilities are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sglang_dspark.calibrate.samples import Samples

GAMMA = 3


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-z))


def true_logits(rows: int, seed: int = 0, gamma: int = GAMMA) -> np.ndarray:
    """`[rows, γ]` logits of the true conditional acceptance, spread over easy and hard positions."""
    return np.random.default_rng(seed).normal(1.0, 1.5, size=(rows, gamma))


def draw(
    z: np.ndarray,
    reported: Callable[[np.ndarray], np.ndarray] = lambda z: z,
    *,
    kind: int = 0,
    per_group: int = 40,
    seed: int = 1,
) -> Samples:
    """Accept with probability σ(z) in turn, and report the confidences σ(reported(z))."""
    rows, gamma = z.shape
    hits = np.random.default_rng(seed).random(z.shape) < sigmoid(z)
    return Samples(
        sigmoid(reported(z)),
        np.logical_and.accumulate(hits, axis=1).sum(axis=1),
        np.full(rows, gamma),
        np.full(rows, kind),
        np.arange(rows) // per_group,
        np.arange(rows) // per_group % 2,
        ("math", "chat"),
    )
