"""Verify lengths stay within what a request may still emit and what its draft left, whatever the policy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.config import DSparkConfig
from sglang_dspark.engine.planner import Planner
from sglang_dspark.ops.draft_block import DraftBlock

GAMMA = 4


def request(limit: int | None, emitted: int, finished: bool = False) -> SimpleNamespace:
    params = SimpleNamespace(max_new_tokens=limit)
    return SimpleNamespace(sampling_params=params, output_ids=[7] * emitted, finished=lambda: finished)


def block(usable: list[int], confidence: float | None = 0.99) -> DraftBlock:
    values = None if confidence is None else torch.full((len(usable), GAMMA), confidence)
    return DraftBlock(torch.zeros(len(usable), GAMMA, dtype=torch.int64), None, values, torch.tensor(usable))


@pytest.mark.known_case(6)
@pytest.mark.parametrize("policy", ["fixed", "threshold"])
def test_lengths_respect_every_limit(policy: str) -> None:
    planner = Planner(DSparkConfig(policy=policy), GAMMA, has_confidence=True)
    requests = [request(None, 50), request(10, 7), request(10, 9), request(10, 10), request(9, 1, finished=True)]
    assert planner.lengths(block([4, 4, 4, 4, 4]), requests) == [4, 2, 0, 0, 0]
    assert planner.lengths(block([0, 1, 4, 4, 4]), requests) == [0, 1, 0, 0, 0]
    assert planner.lengths(block([]), []) == []


def test_the_threshold_reads_confidences_and_the_usable_prefix_exactly() -> None:
    planner = Planner(DSparkConfig(policy="threshold", survival_threshold=0.5), GAMMA, has_confidence=True)
    drawn = block([4, 3, 4])
    drawn.confidence[0] = torch.tensor([0.9, 0.8, 0.6, 0.9])
    drawn.confidence[2] = torch.tensor([0.5, 1.0, 1.0, 0.4999])
    assert planner.lengths(drawn, [request(None, 1)] * 3) == [2, 3, 3]


@pytest.mark.known_case(20)
@pytest.mark.parametrize("length", [None, 0, 2])
def test_a_skipped_draft_schedules_nothing(length: int | None) -> None:
    planner = Planner(DSparkConfig(policy="fixed", verify_length=length), GAMMA, has_confidence=False)
    skipped = DraftBlock.skipped(2, GAMMA, "cpu")
    assert planner.lengths(skipped, [request(None, 1), request(30, 1)]) == [0, 0]
    assert planner.needs_draft is (length != 0)
