"""The randomness of a round in torch: the same bits as `csrc/include/dspark/random.h` (docs/noise.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
_LOG_COEFFICIENTS = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip

DRAFT, ACCEPT, LAST = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Noise:
    """Whose noise a batch uses: fresh for every (stream, round, position, purpose).

    Attributes:
        seed: of the server, 64 bits.
        streams: `[B]` int64, a number of its own for every request; all 64 bits count.
        rounds: `[B]` int64, how many rounds the request has had; never used twice with the same stream.
        coupled: `[B]` bool, requests whose draft and target pick with the noise of the request's own seed (algorithm,
            section 8); their `streams` is that seed and their `rounds` the place in the sequence of the anchor. None:
            no request.
    """

    seed: int
    streams: Tensor
    rounds: Tensor
    coupled: Tensor | None = None

    @property
    def not_on_cuda(self) -> str:
        """Why the CUDA kernels do not draw this noise, empty when they do."""
        return "" if self.coupled is None else "coupled requests are drawn in torch"

    def gumbel(self, position: int, tokens: Tensor) -> Tensor:
        """Gumbel noise of tokens `[B, N]` at a 0-based position of the draft, `[B, N]` float32."""
        token = tokens.long()
        index = (token >> 6 << 4) | (token & 15)
        words = self._words(DRAFT, position, index, self.streams.unsqueeze(1), self.rounds.unsqueeze(1))
        word = words.gather(0, ((token >> 4) & 3).unsqueeze(0)).squeeze(0)
        if self.coupled is not None:
            # gumbel() falls with its word, the engine's noise rises with the hash.
            seeded = _MASK - seeded_hash(self.streams, self.rounds + position, token)
            word = torch.where(self.coupled.unsqueeze(1), seeded, word)
        return gumbel(word)

    def uniform(self, purpose: int, positions: Tensor, request: Tensor) -> Tensor:
        """One uniform of (0, 1) for each row's position and request, `[N]` float64."""
        words = self._words(
            purpose, positions, torch.zeros_like(positions), self.streams[request], self.rounds[request]
        )
        bits = (words[0] << 20) | (words[1] >> 12)
        return (bits.double() + 0.5) * 2.0**-52

    def _words(self, purpose: int, position: int | Tensor, index: Tensor, streams: Tensor, rounds: Tensor) -> Tensor:
        counter = index | (position << 21) | (purpose << 29)
        return philox(counter, rounds & _MASK, streams & _MASK, (streams >> 32) & _MASK, self.seed)


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, seed: int) -> Tensor:
    """Philox4x32-10 (Salmon et al., SC 2011).

    Args:
        c0, c1, c2, c3: the counter, int64 in [0, 2^32), shapes that broadcast.
        seed: the key, 64 bits.

    Returns:
        `[4, ...]` int64, the four words.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(c0, c1, c2, c3)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # int64 products wrap; their bits are those of the unsigned product.
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((high >> 32) & _MASK) ^ c1 ^ k0, high & _MASK, ((low >> 32) & _MASK) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack([c0, c1, c2, c3])


def seeded_hash(seeds: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
    """The hash of the engine's seeded sampler, MurmurHash3 over seed, place in the sequence and token.

    Args:
        seeds, places: `[N]` int64; 64 bits of the seed and 32 of the place count.
        tokens: `[N, K]` or `[K]` int64.

    Returns:
        `[N, K]` int64 in [0, 2^32).
    """
    h = torch.zeros_like(seeds)
    for block in (seeds & _MASK, (seeds >> 32) & _MASK, places & _MASK):
        h = _murmur_step(h, block)
    h = _murmur_step(h.unsqueeze(1), tokens) ^ 16
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _MASK
    return h ^ (h >> 16)


def _murmur_step(h: Tensor, k: Tensor) -> Tensor:
    k = k * 0xCC9E2D51 & _MASK
    k = ((k << 15) | (k >> 17)) & _MASK
    h = h ^ (k * 0x1B873593 & _MASK)
    h = ((h << 13) | (h >> 19)) & _MASK
    return (h * 5 + 0xE6546B64) & _MASK


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise of 32-bit words: `-log(-log(1 - u))`, `u = (word + 1/2) / 2^32` strictly inside (0, 1)."""
    u = ((words.float() + 0.5) * 2.0**-32).clamp_max(1.0 - 2.0**-24)
    v = 1.0 - u
    exponential = (u - (1.0 - v)) - _log_positive(v)
    return 0.0 - _log_positive(exponential)


def _log_positive(x: Tensor) -> Tensor:
    shifted = x.view(torch.int32).long() + (0x3F800000 - 0x3F3504F3)
    e = (shifted >> 23).float() - 127.0
    m = ((shifted & 0x7FFFFF) + 0x3F3504F3).to(torch.int32).view(torch.float32)
    f = m - 1.0
    z = f * f
    y = torch.full_like(f, _LOG_COEFFICIENTS[0])
    for coefficient in _LOG_COEFFICIENTS[1:]:
        y = y * f + coefficient
    y = y * f * z
    y = y + e * -2.12194440e-4
    y = y - z * 0.5
    return (f + y) + e * 0.693359375
