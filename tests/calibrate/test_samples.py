"""Which recorded rows become labels, and how they are split."""

from __future__ import annotations

from typing import Any

import numpy as np
from calibration_draws import draw, true_logits

from sglang_dspark.calibrate.samples import folds, samples_from_rows, split
from sglang_dspark.evaluate.rounds import Rows


def round_rows(**changes: Any) -> Rows:
    rows = {
        "rid": ("a", "b"),
        "temperature": [0, 1.0],
        "coupled": [True, True],
        "length": [3, 3],
        "accepted": [2, 0],
        "explored": [True, True],
        "limit": [3, 3],
        "confidence": np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]], dtype=np.float32),
    } | changes
    return Rows(**{k: np.array(v) if isinstance(v, list) else v for k, v in rows.items()})


def test_rows_carry_class_and_labels() -> None:
    samples = samples_from_rows([round_rows()], gamma=3)
    assert len(samples) == 2
    assert samples.kind.tolist() == [0, 7]  # greedy whatever its coupling; T = 1 coupled
    assert samples.survived(2).tolist() == [True, False]
    assert samples.domains == ("all",)
    assert samples.group.tolist() == [0, 1]


def test_only_explored_drafted_rows_are_used() -> None:
    # Both rows verified everything, but only one by a choice that was made before the draft.
    samples = samples_from_rows([round_rows(explored=[False, True]), round_rows(confidence=None)], gamma=3)
    assert len(samples) == 1
    assert samples.accepted.tolist() == [0]


def test_a_position_has_a_label_only_up_to_the_limit() -> None:
    samples = samples_from_rows([round_rows(limit=[1, 3], length=[1, 3], accepted=[1, 3])], gamma=3)
    assert [samples.has_label(k).tolist() for k in (1, 2, 3)] == [[True, True], [False, True], [False, True]]


def test_a_broken_confidence_ends_the_labels_of_its_row() -> None:
    broken = np.array([[0.9, np.nan, 0.7], [0.6, 0.5, 1.5]], dtype=np.float32)
    samples = samples_from_rows([round_rows(confidence=broken)], gamma=3)
    assert samples.observed.tolist() == [1, 2]
    assert np.isfinite(samples.confidence).all()


def test_requests_get_domain_and_prompt_from_the_client() -> None:
    origin = {"a": ("math", "prompt-1"), "c": ("chat", "prompt-2")}
    second = round_rows(rid=("c", "a"))
    samples = samples_from_rows([round_rows(), second], gamma=3, origin=origin)
    assert [samples.domains[d] for d in samples.domain] == ["math", "chat", "math"]
    assert samples.group.tolist() == [0, 1, 0]  # "b" was not this run's


def test_no_group_is_in_both_halves_and_domains_are_shared_out() -> None:
    samples = draw(true_logits(4_000), per_group=40)
    fitting = split(samples)
    assert not set(samples.group[fitting]) & set(samples.group[~fitting])
    for domain in range(2):
        assert fitting[samples.domain == domain].mean() == 0.5
    fold = folds(samples, 5)
    assert all(len(np.unique(fold[samples.group == g])) == 1 for g in range(5))
