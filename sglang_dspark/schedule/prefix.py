"""The prefix scheduler, written to be read (algorithm, section 3). `ops/schedule.py` computes the same in C++.

Candidates are the γ draft positions of R requests. They are admitted by descending survival, ties by position first and
then by request, so that every rank decides alike; a survival never rises along a request, so what is admitted of it is
a prefix. Survivals are serial float32 products, and sums are float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.schedule.survival import FloatArray, IntArray

MAX_GAMMA = 255


def causal_scan(confidence: npt.ArrayLike, seconds: npt.ArrayLike, limits: npt.ArrayLike) -> IntArray:
    """Admit while Θ = (R + Σ a) / T(R + K) strictly improves; stop at the first candidate that does not.

    Reads nothing past the stopping point, so it may use this round's confidences (report, Algorithm 1).

    Args:
        confidence: `[R, γ]`; a value that is not in [0, 1] ends its request's candidates.
        seconds: `[>= R (1 + γ) + 1]`, a whole round's time for every total of verified tokens.
        limits: `[R]` int, the most each request may verify.

    Returns:
        `[R]` int64, the verify lengths.
    """
    a, candidates = _candidates(confidence, limits)
    requests = a.shape[0]
    times = _checked_seconds(seconds, requests, a.shape[1])
    lengths = np.zeros(requests, dtype=np.int64)
    tokens, total = float(requests), requests
    for k, r in candidates:
        more = tokens + float(a[r, k])
        if not more * times[total] > tokens * times[total + 1]:
            break
        tokens, total = more, total + 1
        lengths[r] = k + 1
    return lengths


def best_budget(confidence: npt.ArrayLike, seconds: npt.ArrayLike, limits: npt.ArrayLike) -> int:
    """The K that maximises (R + the K largest survivals) / T(R + K); the smallest of equals.

    Arguments as `causal_scan`, but only ever confidences of an earlier round: over this round's own it is biased.
    """
    a, candidates = _candidates(confidence, limits)
    requests = a.shape[0]
    times = _checked_seconds(seconds, requests, a.shape[1])
    tokens = float(requests)
    best, best_tokens, best_time = 0, tokens, times[requests] if requests else 1.0
    for considered, (k, r) in enumerate(candidates, start=1):
        tokens += float(a[r, k])
        time = times[requests + considered]
        if tokens * best_time > best_tokens * time:
            best, best_tokens, best_time = considered, tokens, time
    return best


def lagged_topk(confidence: npt.ArrayLike, budget: int, limits: npt.ArrayLike) -> IntArray:
    """The `budget` best candidates by this round's survival, the budget being known beforehand: `[R]` int64."""
    if budget < 0:
        raise ValueError(f"budget: expected at least 0, got {budget}")
    a, candidates = _candidates(confidence, limits)
    lengths = np.zeros(a.shape[0], dtype=np.int64)
    for k, r in candidates[:budget]:
        lengths[r] = k + 1
    return lengths


def prefix_survival(confidence: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """`[R, γ]` float32, `a_{r,k} = Π_{i≤k} c_{r,i}`; 0 from a confidence on that is not a number in [0, 1]."""
    c = np.asarray(confidence, dtype=np.float32)
    if c.ndim != 2 or c.shape[1] > MAX_GAMMA:
        raise ValueError(f"confidence: expected [R, gamma <= {MAX_GAMMA}], got {c.shape}")
    with np.errstate(invalid="ignore"):
        usable = (c >= 0.0) & (c <= 1.0)
    return np.multiply.accumulate(np.where(usable, c, np.float32(0.0)), axis=1)


def _candidates(
    confidence: npt.ArrayLike, limits: npt.ArrayLike
) -> tuple[npt.NDArray[np.float32], list[tuple[int, int]]]:
    a = prefix_survival(confidence)
    most = np.asarray(limits, dtype=np.int64)
    if most.shape != a.shape[:1]:
        raise ValueError(f"limits: expected shape {a.shape[:1]}, got {most.shape}")
    open_ = [(k, r) for r, k in np.argwhere((a > 0) & (np.arange(a.shape[1]) < most[:, None])).tolist()]
    return a, sorted(open_, key=lambda at: (-a[at[1], at[0]], at))


def _checked_seconds(seconds: npt.ArrayLike, requests: int, gamma: int) -> FloatArray:
    times = np.asarray(seconds, dtype=np.float64)
    most = requests * (1 + gamma)
    if times.ndim != 1 or len(times) <= most:
        raise ValueError(f"seconds: expected [at least {most + 1}], got {times.shape}")
    used = times[requests : most + 1]
    if requests and not (np.isfinite(used) & (used > 0)).all():
        raise ValueError("seconds: expected positive finite times from R to R (1 + gamma) tokens")
    return times
