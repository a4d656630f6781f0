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


def murmur_hash3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 (A. Appleby, public domain)."""
    h = 0
    padded = data + b"\0" * (-len(data) % 4)
    for i in range(0, len(padded), 4):
        k = int.from_bytes(padded[i : i + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
        h ^= k
        if i + 4 <= len(data):  # the tail is mixed in without this step
            h = (h << 13 | h >> 19) & 0xFFFFFFFF
            h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def seeded_hash(seed: int, place: int, token: int) -> int:
    """The hash of the engine's seeded sampler; `seed` as an unsigned or a signed 64-bit integer."""
    blocks = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, place & 0xFFFFFFFF, token)
    return murmur_hash3(b"".join(block.to_bytes(4, "little") for block in blocks))


def seeded_keys(p: npt.NDArray[np.float64], seed: int, place: int) -> npt.NDArray[np.float64]:
    """`log p + g` of every token of one row, `[V]`: the engine's own noise, `-log(-log(hash / (2^32 - 1)))`."""
    hashes = np.array([seeded_hash(seed, place, token) for token in range(len(p))], dtype=np.float64)
    with np.errstate(divide="ignore"):
        exponential = np.clip(-np.log(hashes / (2**32 - 1)), 2.0**-32, np.finfo(np.float64).max)
        return np.log(p) - np.log(exponential)
