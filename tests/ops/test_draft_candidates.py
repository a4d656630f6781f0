"""The loop over candidates that were chosen before it, in every implementation, is the loop that selects them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sharded_cases
import torch

from sglang_dspark.ops.draft_block import DraftFilter, draft_block
from sglang_dspark.ops.draft_candidates import Candidates, draft_candidates
from sglang_dspark.ops.draft_torch import select_candidates

CASES = [c for c in sharded_cases.CASES if not c.spoil and c.support <= c.vocab]


def chosen(case: sharded_cases.Case) -> Candidates:
    base = case.base().float()
    ids = select_candidates(base, case.support)
    return Candidates(ids.to(torch.int32), base.gather(2, ids), None)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equals_the_loop_that_selects(case: sharded_cases.Case, gathered: bool, implementation: str | None) -> None:
    arguments, candidates = case.arguments(), chosen(case)
    expected = draft_block(
        case.base(), *arguments, support=case.support, filters=case.filter(), isa=implementation
    )  # fmt: skip
    if gathered:  # the head's own rows are not read then
        head = arguments[2]
        candidates = replace(candidates, rows=head.w2[candidates.ids.long()])
        arguments[2] = replace(head, w2=torch.full_like(head.w2, float("nan")))
    noise = arguments[5] or any_noise(len(arguments[0]))
    ours = draft_candidates(
        candidates, case.vocab, *arguments[:5], noise, case.filter() or DraftFilter(), implementation
    )  # fmt: skip
    assert ours.tokens.tolist() == expected.tokens.tolist()
    assert ours.usable.tolist() == expected.usable.tolist()
    assert torch.equal(ours.confidence, expected.confidence)
    if expected.q is not None:
        assert torch.equal(ours.q.ids, expected.q.ids)
        assert torch.equal(ours.q.probs, expected.q.probs)


def any_noise(batch: int) -> sharded_cases.draft_cases.Noise:
    return sharded_cases.draft_cases.make_noise(batch)


@pytest.mark.parametrize("bad", [-1, 331, 5])
def test_ids_are_checked_before_rows_are_read(bad: int) -> None:
    case = next(c for c in CASES if c.name == "rnn head")
    candidates = chosen(case)
    candidates.ids[1, 2, 7] = bad if bad != 5 else candidates.ids[1, 2, 8]
    with pytest.raises(ValueError, match="ids: expected tokens of the vocabulary, ascending"):
        draft_candidates(candidates, case.vocab, *case.arguments(), DraftFilter())
