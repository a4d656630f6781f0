"""Causal scan with look-ahead: crosses a step of the cost curve on predicted survival instead of on later draws."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from sglang_dspark.schedule.prefix import prefix_survival
from sglang_dspark.schedule.survival import FloatArray, IntArray


def causal_scan_ahead(
    confidence: npt.ArrayLike, predicted: npt.ArrayLike, seconds: npt.ArrayLike, limits: npt.ArrayLike
) -> IntArray:
    """Admit the best candidate while it, or a predicted continuation behind it, improves expected tokens a second.

    The plain scan stops at the first candidate that does not pay, even when two more would. This one puts predictions
    from earlier rounds in place of the confidences it may not read yet, those behind each request's frontier. It reads
    the same confidences of this round as the plain scan, so it is lossless for the same reason (`docs/exactness.md`).
    It admits at least what the plain scan admits; a token admitted for a continuation that fails to come stays.

    Args:
        confidence: `[R, γ]`, of this round.
        predicted: `[R, γ]`, confidences expected from the past only: averages of the request or of its class.
        seconds: `[>= R (1 + γ) + 1]`, a whole round's time for every total of verified tokens.
        limits: `[R]` int, the most each request may verify.

    Returns:
        `[R]` int64, the verify lengths.

    Raises:
        ValueError: shapes that do not agree.
    """
    a = prefix_survival(confidence)
    requests, gamma = a.shape
    expected, times = np.asarray(predicted, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    most = np.clip(np.asarray(limits, dtype=np.int64), 0, gamma)
    if expected.shape != a.shape or most.shape != (requests,) or len(times) <= requests * (1 + gamma):
        raise ValueError(
            f"predicted, limits, seconds: expected {a.shape}, ({requests},) and at least {requests * (1 + gamma) + 1}, "
            f"got {expected.shape}, {most.shape} and {times.shape}"
        )
    lengths, tokens, total = np.zeros(requests, dtype=np.int64), float(requests), requests
    # Each request's frontier, best first; ties break by position, then by request. Nothing behind it is read.
    frontier = [(-float(a[r, 0]), 0, r) for r in range(requests) if gamma and most[r] > 0 and a[r, 0] > 0]
    heapq.heapify(frontier)
    while frontier:
        candidate, k, r = frontier[0]
        pays = (tokens - candidate) * times[total] > tokens * times[total + 1]
        if not pays:
            reached = tokens - candidate + np.cumsum(_behind(a, expected, lengths, most))
            if not np.any(reached * times[total] > tokens * times[total + 2 : total + 2 + len(reached)]):
                break
        heapq.heappop(frontier)
        lengths[r], tokens, total = k + 1, tokens - candidate, total + 1
        if k + 1 < most[r] and a[r, k + 1] > 0:
            heapq.heappush(frontier, (-float(a[r, k + 1]), k + 1, r))
    return lengths


def _behind(a: npt.NDArray[np.float32], expected: FloatArray, lengths: IntArray, most: IntArray) -> FloatArray:
    """Survivals that could follow the best frontier candidate, best first.

    The other requests' frontiers are known, and what lies behind a frontier is predicted from it.
    """
    position = np.arange(a.shape[1])
    frontier = np.minimum(lengths, a.shape[1] - 1)
    known = a[np.arange(len(a)), frontier].astype(np.float64)
    factors = np.where(position > frontier[:, None], expected, 1.0)
    values = known[:, None] * np.multiply.accumulate(factors, axis=1)
    candidates = (position >= lengths[:, None]) & (position < most[:, None]) & (values > 0)
    # The best of them is the candidate itself.
    return np.sort(values[candidates])[::-1][1:]
