"""The noise of a round in NumPy, written from docs/noise.md; one rounding a step, since the bits are the definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DRAFT, ACCEPT, LAST = 0, 1, 2
_LOG = np.array(
    [
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    ],
    dtype=np.float32,
)  # fmt: skip


def philox(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 of one counter and a 64-bit key (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        low, high = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = high >> 32 ^ c1 ^ k0, high & 0xFFFFFFFF, low >> 32 ^ c3 ^ k1, low & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def noise_words(seed: int, stream: int, round_: int, purpose: int, position: int, index: int) -> tuple[int, ...]:
    """The four words of one index; stream as an unsigned or a signed 64-bit integer."""
    counter = (
        index | position << 21 | purpose << 29,
        round_ & 0xFFFFFFFF,
        stream & 0xFFFFFFFF,
        stream >> 32 & 0xFFFFFFFF,
    )
    return philox(counter, seed)


def gumbel(word: int) -> np.float32:
    """`-log(-log(1 - u))` of one word, `u = (word + 1/2) / 2^32`, one rounding a step."""
    one, half = np.float32(1), np.float32(0.5)
    u = min((np.float32(word) + half) * np.float32(2.0**-32), one - np.float32(2.0**-24))
    v = one - u
    exponential = (u - (one - v)) - _log(v)
    return np.float32(0) - _log(exponential)


def draft_gumbel(seed: int, stream: int, round_: int, position: int, token: int) -> np.float32:
    """Noise of one token at a 0-based position of the draft."""
    words = noise_words(seed, stream, round_, DRAFT, position, (token // 64) * 16 + token % 16)
    return gumbel(words[token // 16 % 4])


def uniform(seed: int, stream: int, round_: int, purpose: int, position: int) -> float:
    """The one uniform of (request, round, position, purpose), 52 bits, inside (0, 1)."""
    words = noise_words(seed, stream, round_, purpose, position, 0)
    return ((words[0] << 20 | words[1] >> 12) + 0.5) * 2.0**-52


def _log(x: np.float32) -> np.float32:
    shifted = int(x.view(np.uint32)) + 0x3F800000 - 0x3F3504F3
    e = np.float32((shifted >> 23) - 127)
    m: npt.NDArray[np.float32] = np.array((shifted & 0x7FFFFF) + 0x3F3504F3, dtype=np.uint32).view(np.float32)
    f = np.float32(m) - np.float32(1)
    z = f * f
    y = _LOG[0]
    for coefficient in _LOG[1:]:
        y = y * f + coefficient
    y = y * f * z
    y = y + e * np.float32(-2.12194440e-4)
    y = y - z * np.float32(0.5)
    return (f + y) + e * np.float32(0.693359375)
