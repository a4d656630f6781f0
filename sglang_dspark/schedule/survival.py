"""From per-position confidences to the survival probabilities a policy may use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def survival(confidence: npt.ArrayLike) -> FloatArray:
    """Probability that positions 1..k are all accepted, `a_{r,k} = Π_{i≤k} c_{r,i}` (report, section 4).

    Non-increasing in k by construction: the serial product of factors in [0, 1] never rises in floating point, which
    the prefix schedulers rely on. A confidence that is not a number in [0, 1] makes the survival 0 from its position
    on and leaves earlier positions alone: they were drawn before it was known.

    Args:
        confidence: `[R, gamma]`, any float dtype.

    Returns:
        `[R, gamma]` float64.
    """
    c = np.asarray(confidence, dtype=np.float64)
    if c.ndim != 2:
        raise ValueError(f"confidence: expected shape [R, gamma], got {c.shape}")
    with np.errstate(invalid="ignore"):
        usable = (c >= 0.0) & (c <= 1.0)
    return np.multiply.accumulate(np.where(usable, c, 0.0), axis=1)
