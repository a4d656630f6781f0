"""The live ECE and the fuse: quiet on good calibrations, however few the samples, and sure on bad ones."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sglang_dspark.calibrate.fit import Curve, fit
from sglang_dspark.calibrate.metrics import ece
from sglang_dspark.calibrate.samples import Samples
from sglang_dspark.schedule.live_calibration import Change, FuseLimits, LiveCalibration, Trust

GAMMA, R = 5, 32


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-z))


class Traffic:
    """Rounds whose confidences are `claim(z)` where acceptance has probability σ(z)."""

    def __init__(self, seed: int = 0, mean: float = 1.0) -> None:
        self.generator = np.random.default_rng(seed)
        self.mean = mean

    def draw(self, rows: int = R) -> tuple[np.ndarray, np.ndarray]:
        z = self.generator.normal(self.mean, 1.5, size=(rows, GAMMA))
        hits = self.generator.random(z.shape) < sigmoid(z)
        return z, np.logical_and.accumulate(hits, axis=1).sum(axis=1)

    def feed(self, live: LiveCalibration, rounds: int, claim=sigmoid, kind: int = 0) -> list[Change]:
        changes = []
        for _ in range(rounds):
            z, accepted = self.draw()
            every = np.ones(R, dtype=bool)
            c = claim(z).astype(np.float32)
            changes += live.observe(c, np.full(R, kind), accepted, np.full(R, GAMMA), every)
        return changes


def kinds(number: int) -> np.ndarray:
    return np.array([number])


def test_the_running_ece_is_the_ece_of_the_window() -> None:
    live, traffic = LiveCalibration(GAMMA, every=1), Traffic()
    predicted, outcome = [], []
    for _ in range(50):
        z, accepted = traffic.draw()
        c = sigmoid(2 * z).astype(np.float32)
        live.observe(c, np.zeros(R, dtype=int), accepted, np.full(R, GAMMA), np.ones(R, dtype=bool))
        predicted.append(np.cumprod(c, axis=1))
        outcome.append(accepted[:, None] >= np.arange(1, GAMMA + 1))
    a, y = np.concatenate(predicted), np.concatenate(outcome)
    figures = live.figures()["greedy"]
    assert figures["rows"] == [1600] * GAMMA
    for k in range(GAMMA):
        # Equally wide bins against equally full ones.
        assert figures["ece"][k] == pytest.approx(ece(a[:, k], y[:, k]), abs=0.015)
    reached = np.concatenate([np.ones((1600, 1), dtype=bool), y[:, :-1]], axis=1)
    np.testing.assert_allclose(figures["acceptance"], (y & reached).sum(0) / reached.sum(0), atol=0.01)


def test_the_floor_is_what_a_perfect_predictor_shows() -> None:
    seen = []
    for seed in range(30):
        live = LiveCalibration(GAMMA, every=1)
        Traffic(seed).feed(live, 20)
        seen.append(live.figures()["greedy"]["ece"])
        floor = live.figures()["greedy"]["floor"]
    np.testing.assert_allclose(np.mean(seen, axis=0), floor, rtol=0.12)


def test_good_confidences_never_trip_it() -> None:
    for seed in range(20):
        live = LiveCalibration(GAMMA)
        assert Traffic(seed).feed(live, 100) == []  # judged 50 times from 256 rows on


def test_few_samples_never_trip_it() -> None:
    live = LiveCalibration(GAMMA)
    assert Traffic().feed(live, 6, claim=lambda z: np.full_like(z, 0.999)) == []
    assert live.trust(kinds(0)) == Trust.CONFIDENCE


def test_it_falls_by_how_wrong_the_confidences_are() -> None:
    slightly, badly = LiveCalibration(GAMMA), LiveCalibration(GAMMA)
    assert Traffic().feed(slightly, 200, claim=lambda z: sigmoid(z + 0.15)) == []
    (first,) = Traffic().feed(badly, 200, claim=lambda z: sigmoid(z + 0.7))
    assert (first.before, first.after) == (Trust.CONFIDENCE, Trust.MEASURED)
    hopeless = LiveCalibration(GAMMA)
    changes = Traffic().feed(hopeless, 200, claim=lambda z: sigmoid(z + 3.0))
    assert hopeless.trust(kinds(0)) == Trust.ONE_TOKEN
    assert changes[-1].after == Trust.ONE_TOKEN


def test_what_the_planner_gets_follows_the_fuse() -> None:
    live = LiveCalibration(GAMMA)
    Traffic().feed(live, 100, claim=lambda z: sigmoid(z + 0.7), kind=3)
    c = np.full((2, GAMMA), 0.99, dtype=np.float32)
    c[0, 4] = np.nan
    both = np.array([3, 0])
    got = live.substitute(c, both)
    assert got[0, :4] == pytest.approx(live.acceptance()[3, :4])
    assert 0.6 < got[0, 0] < 0.75  # the mean of σ(N(1, 1.5²))
    assert np.isnan(got[0, 4])
    np.testing.assert_array_equal(got[1], c[1])  # another class is not touched
    assert live.cap(np.array([5, 5]), both).tolist() == [5, 5]
    Traffic().feed(live, 100, claim=lambda z: sigmoid(z + 4.0), kind=3)
    assert live.cap(np.array([5, 5]), both).tolist() == [1, 5]


def test_it_rises_a_step_at_a_time_and_does_not_flutter() -> None:
    live, traffic = LiveCalibration(GAMMA, chunks=8), Traffic()
    traffic.feed(live, 100, claim=lambda z: sigmoid(z + 3.0))
    changes = traffic.feed(live, 200)
    assert [(c.before, c.after) for c in changes] == [
        (Trust.ONE_TOKEN, Trust.MEASURED),
        (Trust.MEASURED, Trust.CONFIDENCE),
    ]
    # Between the limits nothing moves: not bad enough to fall, not good enough to rise.
    edge = LiveCalibration(GAMMA)
    assert len(traffic.feed(edge, 400, claim=lambda z: sigmoid(z + 0.6))) <= 1


def test_only_explored_rows_and_verified_positions_count() -> None:
    live = LiveCalibration(GAMMA, every=1)
    traffic = Traffic()
    for _ in range(100):
        z, accepted = traffic.draw()
        c = sigmoid(z).astype(np.float32)
        explored, limit = np.arange(R) % 2 == 0, np.where(np.arange(R) % 4 == 0, 2, GAMMA)
        c[~explored] = 0.001  # nonsense
        c[limit == 2, 2:] = 0.001
        live.observe(c, np.zeros(R, dtype=int), np.minimum(accepted, limit), limit, explored)
    assert live.trust(kinds(0)) == Trust.CONFIDENCE
    assert live.figures()["greedy"]["rows"] == [1600, 1600, 800, 800, 800]


def test_broken_confidences_are_not_counted() -> None:
    live = LiveCalibration(GAMMA, every=1)
    for _ in range(4):
        c = np.full((R, GAMMA), 0.5, dtype=np.float32)
        c[0, 2], c[1, 0] = np.nan, np.inf
        live.observe(c, np.zeros(R, dtype=int), np.zeros(R, dtype=int), np.full(R, GAMMA), np.ones(R, dtype=bool))
    assert live.figures()["greedy"]["rows"] == [124, 124, 120, 120, 120]
    assert live.figures()["greedy"]["ece"] == [None] * GAMMA  # too few to say
    assert live.figures()["greedy"]["level"] == 0
    assert np.isfinite(live.figures()["greedy"]["acceptance"]).all()


def test_the_window_forgets() -> None:
    live = LiveCalibration(GAMMA, FuseLimits(rows=64), chunks=4, every=1)
    Traffic().feed(live, 10, claim=lambda z: sigmoid(z + 0.7))
    Traffic().feed(live, 40)
    assert live.figures()["greedy"]["rows"][0] <= 4 * 64
    assert live.figures()["greedy"]["ece"][0] < 0.1


def test_large_batches_fit() -> None:
    live = LiveCalibration(GAMMA, every=1)
    z, accepted = Traffic().draw(1_000)
    c = sigmoid(z).astype(np.float32)
    live.observe(c, np.zeros(1_000, dtype=int), accepted, np.full(1_000, GAMMA), np.ones(1_000, dtype=bool))
    assert live.figures()["greedy"]["rows"][0] == 1_000


@pytest.mark.known_case(26)
def test_a_calibration_made_on_code_is_found_out_on_chat() -> None:
    def raw_code(z: np.ndarray) -> np.ndarray:
        return sigmoid(1.5 * z)

    def raw_chat(z: np.ndarray) -> np.ndarray:
        return sigmoid(1.5 * z + 1.6)  # far too sure of itself on chat

    def samples(raw, traffic: Traffic, rows: int = 6_000) -> Samples:
        z, accepted = traffic.draw(rows)
        group = np.arange(rows) // 40
        return Samples(
            raw(z), accepted, np.full(rows, GAMMA), np.zeros(rows, int), group, np.zeros(rows, int), ("all",)
        )

    def calibrated(curve: Curve, raw):
        return lambda z: curve.confidence(raw(z))

    code, chat = Traffic(1, mean=1.5), Traffic(2, mean=0.5)
    on_code = fit(samples(raw_code, code), "slope-offset")
    live = LiveCalibration(GAMMA)
    assert code.feed(live, 100, calibrated(on_code, raw_code)) == []
    changes = chat.feed(live, 150, calibrated(on_code, raw_chat))
    assert changes
    assert live.trust(kinds(0)) > Trust.CONFIDENCE
    # A new fit is offered, by the command that makes it from this very traffic.
    assert "calibrate --records" in changes[0].message
    # What the fuse puts in place of the confidences is chat's own acceptance.
    z, accepted = chat.draw(20_000)
    substitute = live.substitute(calibrated(on_code, raw_chat)(z[:1]).astype(np.float32), kinds(0))
    assert substitute[0, 0] == pytest.approx((accepted >= 1).mean(), abs=0.04)
    # The new fit is trusted again.
    on_chat = fit(samples(raw_chat, chat), "slope-offset")
    chat.feed(live, 350, calibrated(on_chat, raw_chat))
    assert live.trust(kinds(0)) == Trust.CONFIDENCE


def test_a_round_costs_microseconds() -> None:
    live, (z, accepted) = LiveCalibration(GAMMA), Traffic().draw()
    c, kind, limit = sigmoid(z).astype(np.float32), np.zeros(R, dtype=int), np.full(R, GAMMA)
    every = np.ones(R, dtype=bool)
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(16):
            live.observe(c, kind, accepted, limit, every)
            live.substitute(c, kind)
        best = min(best, (time.perf_counter() - start) / 16)
    # Every row of every round explored, which only a calibration run does. Measured alone: see docs/calibration.md.
    assert best < 100e-6
