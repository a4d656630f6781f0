"""The parts of the live tests: the settings, the float64 reference, and the verdicts on tokens whose law is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from live.check import Evidence, biased, draw_from, judge, power, residuals_of
from live.readme import RESULTS, ROOT, with_table
from live.reference import FIRST_LETTER, LETTERS, MARGIN, Array, Ints, Reference, filtered, legal_tokens, penalised
from live.sampling import PAIR, Drawn
from live.settings import GAMMA, GRAMMAR, all_pairs, covering_array, pairs

TOKENS, LENGTH = 20_000, 32
DRAWN = Drawn(np.zeros((1, 1), dtype=np.int64), rounds=9, proposed=36, accepted=12, cached=0, seconds=1.0)


def test_settings_contain_every_pair_of_levels() -> None:
    settings = covering_array()
    assert len(settings) <= 16
    assert set().union(*(pairs(setting.levels) for setting in settings)) == all_pairs()
    assert len({str(setting) for setting in settings}) == len(settings)


def test_the_pair_is_small_and_drafts_gamma_tokens() -> None:
    assert sum(file.stat().st_size for file in PAIR.rglob("*")) < 1 << 20
    assert json.loads((PAIR / "draft" / "config.json").read_text())["block_size"] == GAMMA


def made_evidence(draw_p: Array | None = None, seed: int = 0) -> Evidence:
    """Tokens of random distributions, drawn from those or from `draw_p`."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(16, 0.3), TOKENS)
    tokens = draw_from(p if draw_p is None else draw_p, rng)
    previous = np.concatenate([[0], tokens[:-1]])
    residuals = residuals_of(tokens, p).reshape(-1, LENGTH)
    return Evidence(tokens, p, previous, np.arange(TOKENS) % LENGTH, residuals, concurrent=3, unsharp=0)


def test_exact_draws_pass_at_the_stated_rate() -> None:
    verdicts = [judge({"s": (made_evidence(seed=seed), DRAWN)}, 0.05, False)[0].verdict for seed in range(20)]
    assert verdicts.count("fail") <= 4  # 1 is expected; more than 4 has probability 0.003


def test_a_bias_of_a_hundredth_fails() -> None:
    rng = np.random.default_rng(1)
    honest = made_evidence()
    p = np.repeat(honest.probabilities, 5, axis=0)
    found = replace(
        honest,
        tokens=draw_from(biased(p), rng),
        probabilities=p,
        previous=np.repeat(honest.previous, 5),
        positions=np.repeat(honest.positions, 5),
    )
    assert judge({"s": (found, DRAWN)}, 0.01, False)[0].verdict == "fail"
    assert power(found, 0.01) >= 0.9
    assert power(replace(found, probabilities=p[:, ::-1].copy()), 0.01) >= 0.9  # whichever token is the likely one


def test_answers_that_share_noise_fail() -> None:
    """Each answer alone has the right law."""
    found = made_evidence()
    shared = found.residuals.copy()
    shared[1::3, :8] = shared[::3, :8][: len(shared[1::3])]  # the first tokens of two answers in three
    [line] = judge({"s": (replace(found, residuals=shared), DRAWN)}, 0.001, False)
    assert (line.cells, line.verdict) == ("between answers", "fail")


def test_draws_that_repeat_noise_fail() -> None:
    found = made_evidence()
    repeated = found.residuals.copy()
    repeated[:, 4] = repeated[:, 3]
    [line] = judge({"s": (replace(found, residuals=repeated), DRAWN)}, 0.001, False)
    assert (line.cells, line.verdict) == ("within answers", "fail")


def test_an_impossible_token_fails() -> None:
    found = made_evidence()
    p = found.probabilities.copy()
    p[7] = np.eye(16)[(found.tokens[7] + 1) % 16]
    assert judge({"s": (replace(found, probabilities=p), DRAWN)}, 0.001, False)[0].verdict == "fail"


@pytest.mark.parametrize(
    "counts", [{"proposed": 0, "accepted": 0}, {"accepted": 0}, {"accepted": 36}], ids=["no draft", "none", "all"]
)
def test_without_accepted_and_rejected_drafts_there_is_no_verdict(counts: dict[str, int]) -> None:
    [line] = judge({"s": (made_evidence(), replace(DRAWN, **counts))}, 0.001, False)
    assert line.verdict == "inconclusive"


def test_the_readme_shows_the_recorded_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme, RESULTS.read_text(encoding="utf-8")) == readme


def tokens_of(text: str) -> Ints:
    return np.array([[FIRST_LETTER + LETTERS.index(letter) for letter in text]], dtype=np.int64)


@pytest.mark.parametrize(
    ("text", "legal"), [("", "abcdefghi"), ("a", "jklm"), ("aj", "abcdefghi"), ("dg", "ghi"), ("ddgi", "abcdefghi")]
)
def test_legal_tokens(text: str, legal: str) -> None:
    mask = legal_tokens(tokens_of(text), GRAMMAR)
    assert "".join(LETTERS[i - FIRST_LETTER] for i in np.flatnonzero(mask[0])) == legal


def test_penalties() -> None:
    logits = np.array([[2.0, -2.0, 1.0, 1.0]])
    seen = np.array([[2.0, 1.0, 1.0, 0.0]])
    sampling = {"frequency_penalty": 0.25, "presence_penalty": 0.5, "repetition_penalty": 2.0}
    # 2 - 0.5 - 0.5 = 1, halved; -2 - 0.75, doubled; 1 - 0.75, halved; not seen.
    np.testing.assert_allclose(penalised(logits, seen, sampling), [[0.5, -5.5, 0.125, 1.0]])


@pytest.mark.parametrize("sampling", [{"top_k": 2}, {"top_p": 0.65}, {"min_p": 0.6}], ids=str)
def test_filters(sampling: dict[str, float]) -> None:
    p, sharp = filtered(np.array([[0.1, 0.4, 0.3, 0.2]]), sampling)
    np.testing.assert_allclose(p, np.array([[0, 4, 3, 0]]) / 7)
    assert sharp.all()


@pytest.mark.parametrize("sampling", [{"top_p": 0.7 + MARGIN / 2}, {"min_p": 0.5 - MARGIN / 4}, {"top_k": 3}], ids=str)
def test_contexts_where_rounding_decides_are_known(sampling: dict[str, float]) -> None:
    assert not filtered(np.array([[0.15, 0.4, 0.3, 0.15], [0.1, 0.4, 0.3, 0.2]]), sampling)[1].all()


def test_reference_sees_the_whole_context() -> None:
    """A conditional distribution moves with any token before it, else a broken cache would not show."""
    reference = Reference(PAIR / "target")
    outputs = np.full((1, 4), 5)
    prompts = np.array([[1, 3, 4, 5, 6, 7], [1, 9, 4, 5, 6, 7]])
    a, b = (reference.distributions(prompts[i : i + 1], outputs, {"temperature": 1.0})[0] for i in (0, 1))
    np.testing.assert_allclose(a.sum(axis=2), 1.0)
    assert np.abs(a - b).sum(axis=2).min() > 0.01
