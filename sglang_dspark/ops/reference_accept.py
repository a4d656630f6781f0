"""The accept of one request in float64 NumPy, written from the definition (algorithm, step 6)."""

from __future__ import annotations

import numpy as np

from sglang_dspark.ops.reference_noise import ACCEPT, LAST, uniform
from sglang_dspark.schedule.survival import FloatArray


def reference_accept(
    logits: FloatArray,
    drafted: list[int],
    q: FloatArray | None,
    usable: int,
    temperature: float,
    noise: tuple[int, int, int],
    p: FloatArray | None = None,
) -> tuple[list[int], float]:
    """The tokens a round emits, the last one included.

    Args:
        logits: `[ℓ + 1, V]`.
        drafted: `[γ]`.
        q: `[γ, V]`, or None when the draft was not sampled.
        noise: (seed, stream, round).
        p: `[ℓ + 1, V]`, where it is not softmax(logits / T).

    Returns:
        the tokens, and how close the closest decision was (uniforms and cumulative sums within it may go either way).
    """
    emitted: list[int] = []
    margin = np.inf
    for k, row in enumerate(logits):
        tested = k < min(usable, len(drafted))
        cut = k == len(logits) - 1
        if temperature == 0:
            best = int(row.argmax())
            emitted.append(best)
            if not (tested and best == drafted[k] and not cut):
                break
            continue
        weights = np.exp((row - row.max()) / temperature)
        p_k = weights / weights.sum() if p is None else p[k]
        if tested and q is not None:
            ratio = p_k[drafted[k]] / max(q[k, drafted[k]], 1e-300)
            u = uniform(*noise, ACCEPT, k)
            margin = min(margin, abs(u - ratio))
            if u < ratio:
                emitted.append(drafted[k])
                if cut:
                    break
                continue
        left = p_k
        if tested and q is not None and np.maximum(p_k - q[k], 0).sum() > 0:
            left = np.maximum(p_k - q[k], 0)
        share = np.cumsum(left) / left.sum()
        u = uniform(*noise, LAST, k)
        margin = min(margin, float(np.abs(share - u).min()))
        emitted.append(int(np.searchsorted(share, u, side="right")))
        break
    return emitted, float(margin)
