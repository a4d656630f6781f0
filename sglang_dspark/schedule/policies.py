"""Verification policies: how many of its γ draft tokens each request verifies in this round.

Every policy must keep `{length_r >= k}` a function of the tokens drafted up to position k (`docs/exactness.md`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.schedule.survival import IntArray, survival


def fixed(length: int, limits: npt.ArrayLike) -> IntArray:
    """The same length for every request, within its limit.

    Args:
        length: draft tokens to verify, at least 0.
        limits: `[R]`, the most each request may verify (its remaining output, the block size).

    Returns:
        `[R]` int64. Reads nothing of the draft, so it is lossless for any draft.
    """
    return np.clip(np.asarray(limits, dtype=np.int64), 0, length)


def threshold(confidence: npt.ArrayLike, minimum: float, limits: npt.ArrayLike) -> IntArray:
    """Verify up to the last position before survival first falls below `minimum`.

    Lossless: whether position k is verified depends on the confidences of positions 1..k, and `c_k` on tokens before
    k only. A position with survival 0 is never verified, whatever `minimum` is.

    Args:
        confidence: `[R, gamma]`.
        minimum: in [0, 1].
        limits: `[R]` int, the most each request may verify.

    Returns:
        `[R]` int64.
    """
    a = survival(confidence)
    kept = (a >= minimum) & (a > 0.0)
    lengths = np.logical_and.accumulate(kept, axis=1).sum(axis=1, dtype=np.int64)
    return np.minimum(lengths, np.clip(np.asarray(limits, dtype=np.int64), 0, None))
