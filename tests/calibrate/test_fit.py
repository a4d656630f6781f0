"""The fit recovers distortions that were put in, and is judged on requests it has not seen."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_draws import GAMMA, draw, sigmoid, true_logits

from sglang_dspark.calibrate.fit import choose, fit, fit_class
from sglang_dspark.calibrate.metrics import ece, noise_floor
from sglang_dspark.calibrate.samples import Samples

ROWS = 20_000


def held_out_ece(slope: np.ndarray, offset: np.ndarray, samples: Samples) -> list[float]:
    z = np.log(samples.confidence / (1 - samples.confidence))
    a = np.cumprod(sigmoid(slope * z + offset), axis=1)
    return [ece(a[:, k], samples.survived(k + 1)) for k in range(samples.gamma)]


def test_a_perfect_predictor_is_left_alone() -> None:
    curve = fit(draw(true_logits(ROWS)), "temperature")
    np.testing.assert_allclose(curve.slope, 1.0, atol=0.08)
    assert not curve.offset.any()


def test_an_over_confident_draft_gets_its_temperatures_back() -> None:
    taus = np.array([2.0, 1.5, 3.0])  # what the reported logits were multiplied by, per position
    curve = fit(draw(true_logits(ROWS), lambda z: z * taus), "temperature")
    np.testing.assert_allclose(1 / curve.slope, taus, rtol=0.1)
    fresh = draw(true_logits(ROWS, seed=7), lambda z: z * taus, seed=8)
    before = held_out_ece(np.ones(GAMMA), np.zeros(GAMMA), fresh)
    after = held_out_ece(curve.slope, curve.offset, fresh)
    assert min(before) > 0.04
    assert max(after) < 0.02


def test_an_offset_is_fitted_where_a_temperature_is_not_enough() -> None:
    def distort(z: np.ndarray) -> np.ndarray:
        return 0.8 * z + np.array([1.0, -1.0, 0.5])

    parameters, scores = fit_class(draw(true_logits(3_000), distort))
    assert parameters.method == "slope-offset"
    assert (parameters.samples, parameters.requests) == (3_000, 75)
    assert np.mean(scores["slope-offset"]) < 0.5 * np.mean(scores["temperature"])
    curve = fit(draw(true_logits(ROWS), distort), "slope-offset")
    np.testing.assert_allclose(curve.slope, 1 / 0.8, rtol=0.2)
    np.testing.assert_allclose(curve.offset, np.array([-1.0, 1.0, -0.5]) / 0.8, atol=0.2)
    fresh = draw(true_logits(ROWS, seed=7), distort, seed=8)
    assert max(held_out_ece(curve.slope, curve.offset, fresh)) < 0.02


def test_censored_positions_are_neither_fitted_nor_counted() -> None:
    complete = draw(true_logits(8_000), lambda z: 2 * z)
    # Half of the rows end at position 1; what they claim behind it is nonsense and must not matter.
    short = np.arange(8_000) % 2 == 0
    confidence = complete.confidence.copy()
    confidence[short, 1:] = 0.001
    censored = Samples(
        confidence,
        np.where(short, np.minimum(complete.accepted, 1), complete.accepted),
        np.where(short, 1, GAMMA),
        complete.kind,
        complete.group,
        complete.domain,
        complete.domains,
    )
    curve, reference = fit(censored, "temperature"), fit(complete.select(~short), "temperature")
    assert censored.has_label(2).sum() == 4_000
    np.testing.assert_allclose(curve.slope[1:], reference.slope[1:], rtol=0.1)


def test_the_choice_between_methods_is_made_on_requests_left_out() -> None:
    method, scores = choose(draw(true_logits(4_000)))
    floor = noise_floor(sigmoid(true_logits(4_000))[:, 0])[0]
    # Nothing to correct: no method is far from the noise, so which one wins is of no consequence.
    assert method in scores
    assert all(np.mean(values) < 2.5 * floor for values in scores.values())


def test_a_position_without_both_outcomes_keeps_its_confidence() -> None:
    samples = draw(np.full((400, GAMMA), 20.0), lambda z: z * 0 + 1)
    curve = fit(samples, "slope-offset")
    np.testing.assert_array_equal(curve.slope, 1.0)
    np.testing.assert_array_equal(curve.offset, 0.0)


def test_rows_of_two_classes_are_refused() -> None:
    mixed = draw(true_logits(10))
    mixed.kind[:5] = 3
    with pytest.raises(ValueError, match="one class"):
        fit_class(mixed)
