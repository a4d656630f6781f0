"""The prefix scheduler in C++ (algorithm, section 3); without the extension, `schedule/prefix.py` does the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.ops.extension import extension, warn_missing
from sglang_dspark.schedule import prefix
from sglang_dspark.schedule.survival import IntArray


def causal_scan(confidence: npt.ArrayLike, seconds: npt.ArrayLike, limits: npt.ArrayLike) -> IntArray:
    """Verify lengths by the report's Algorithm 1: admit by descending survival while Θ strictly improves.

    Args:
        confidence: `[R, γ <= 255]` float32, this round's; a value not in [0, 1] ends its request's candidates.
        seconds: `[>= R (1 + γ) + 1]` float64, a whole round's time for every total of verified tokens.
        limits: `[R]` int64, the most each request may verify; 0 for a finished one.

    Returns:
        `[R]` int64.

    Raises:
        ValueError: names the argument, its shape and what was expected.
    """
    native = extension()
    if native is None:
        warn_missing("causal_scan")
        return prefix.causal_scan(confidence, seconds, limits)
    return native.causal_scan(_floats(confidence), _seconds(seconds), _integers(limits))


def best_budget(confidence: npt.ArrayLike, seconds: npt.ArrayLike, limits: npt.ArrayLike) -> int:
    """The K that maximises Θ over **an earlier round's** confidences. Arguments and errors as `causal_scan`."""
    native = extension()
    if native is None:
        warn_missing("best_budget")
        return prefix.best_budget(confidence, seconds, limits)
    return native.best_budget(_floats(confidence), _seconds(seconds), _integers(limits))


def lagged_topk(confidence: npt.ArrayLike, budget: int, limits: npt.ArrayLike) -> IntArray:
    """Verify lengths `[R]` int64: the `budget` (from `best_budget`) best candidates by this round's survival.

    Args:
        confidence, limits: as in `causal_scan`.
        budget: at least 0.
    """
    native = extension()
    if native is None:
        warn_missing("lagged_topk")
        return prefix.lagged_topk(confidence, budget, limits)
    return native.top_candidates(_floats(confidence), budget, _integers(limits))


def _floats(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.require(value, np.float32, ["C", "A"])


def _seconds(value: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.require(value, np.float64, ["C", "A"])


def _integers(value: npt.ArrayLike) -> IntArray:
    return np.require(value, np.int64, ["C", "A"])
