"""The noise: known answers, equal bits in every implementation, its law, and its extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from sglang_dspark.ops import reference_noise
from sglang_dspark.ops.extension import extension
from sglang_dspark.ops.noise import ACCEPT, LAST, Noise, gumbel, philox

WORDS = [0, 1, 2, 3, 127, 2**16, 2**24 - 1, 2**24 + 1, 2**31, 2**32 - 2**8, 2**32 - 257, 2**32 - 2, 2**32 - 1]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: int, expected: tuple[int, ...]) -> None:
    """The vectors published with the generator (Random123, kat_vectors)."""
    assert reference_noise.philox(counter, key) == expected
    assert tuple(philox(*(torch.tensor([c]) for c in counter), key)[:, 0].tolist()) == expected


def test_torch_and_numpy_have_the_same_bits() -> None:
    words = WORDS + np.random.default_rng(0).integers(0, 2**32, 500).tolist()
    reference = np.array([reference_noise.gumbel(w) for w in words])
    assert np.array_equal(gumbel(torch.tensor(words)).numpy().view(np.int32), reference.view(np.int32))


@pytest.mark.parametrize("path", ["one", "avx512", "avx2", "scalar"])
def test_extension_has_the_same_bits(path: str) -> None:
    native = extension()
    if native is None or (path != "one" and path not in native.available_isas()):
        pytest.skip(f"{path} is not available here")
    out = torch.empty(64)
    for seed, stream, round_, position, first in [
        (0, 0, 0, 0, 0),
        (2**64 - 1, -1, 2**32 - 1, 255, 2**23 - 64),
        (12345678901234567890, 2**62 + 7, 3, 6, 151872),
    ]:
        native.draft_noise(seed, stream, round_, position, first, out, path)
        reference = [reference_noise.draft_gumbel(seed, stream, round_, position, first + i) for i in range(64)]
        assert np.array_equal(out.numpy().view(np.int32), np.array(reference).view(np.int32))
        noise = Noise(seed, torch.tensor([stream]), torch.tensor([round_]))
        tokens = torch.arange(first, first + 64).unsqueeze(0)
        assert torch.equal(noise.gumbel(position, tokens)[0], out)


def test_uniforms_agree_and_differ_by_purpose_position_round_and_stream() -> None:
    streams, rounds = torch.tensor([5, 5, -6]), torch.tensor([1, 2, 1])
    noise = Noise(99, streams, rounds)
    request, position = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 0, 1])
    values = []
    for purpose in (ACCEPT, LAST):
        got = noise.uniform(purpose, position, request).tolist()
        expected = [
            reference_noise.uniform(99, int(streams[r]), int(rounds[r]), purpose, k)
            for r, k in zip(request.tolist(), position.tolist(), strict=True)
        ]
        assert got == expected
        values += got
    assert len(set(values)) == len(values)


@pytest.mark.known_case(16)
def test_extremes_are_finite_and_inside() -> None:
    """Known case 16: hashes at the top of the 32-bit range."""
    noise = gumbel(torch.tensor(WORDS))
    assert noise.isfinite().all()
    assert bool((noise.diff() < 0).sum() >= len(WORDS) - 5)  # falls with the word, up to rounding at the top
    assert float(noise[0]) == pytest.approx(33 * math.log(2), abs=1e-5)
    assert float(noise[-1]) == pytest.approx(-math.log(24 * math.log(2)), abs=1e-5)


def test_every_step_is_accurate() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 20000)
    exact = -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) / 2**32))
    error = np.abs(gumbel(torch.tensor(words)).numpy() - exact)
    assert error[exact > -1].max() < 2e-6
    assert error.max() < 1e-2  # u close to 1: noise that low decides nothing


def test_the_law_is_gumbel() -> None:
    noise = Noise(1, torch.arange(50), torch.zeros(50, dtype=torch.int64))
    sample = noise.gumbel(2, torch.arange(400).expand(50, 400)).flatten().numpy()
    assert kstest(sample, "gumbel_r").pvalue > 1e-3
    uniforms = noise.uniform(ACCEPT, torch.arange(200).repeat(50), torch.arange(50).repeat_interleave(200)).numpy()
    assert kstest(uniforms, "uniform").pvalue > 1e-3


@pytest.mark.known_case(16)
@pytest.mark.parametrize(("word", "expected"), [(0, 2.0**-53), (0xFFFF_FFFF, 1 - 2.0**-53)])
def test_uniforms_of_the_outermost_words_are_inside(
    word: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No counter is known to give these words, so the generator's output is set."""
    monkeypatch.setattr("sglang_dspark.ops.noise.philox", lambda *_: torch.full((4, 1), word))
    one = torch.zeros(1, dtype=torch.int64)
    value = Noise(0, one, one).uniform(ACCEPT, one, one)
    assert value.tolist() == [expected]
    assert 0.0 < float(value) < 1.0
