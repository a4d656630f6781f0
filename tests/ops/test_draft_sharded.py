"""The vocabulary-sharded draft in real groups of processes: every rank's result is the unsharded one, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sharded_cases
import torch

from sglang_dspark.ops.draft_block import DraftBlock, draft_block

pytestmark = pytest.mark.xdist_group("sharded")  # the groups run once
PROCESS = Path(__file__).with_name("sharded_process.py")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What each rank of a group returns for all cases."""
    folder, count = tmp_path_factory.mktemp("group"), request.param
    outputs = [folder / f"{rank}.pt" for rank in range(count)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROCESS), str(rank), str(count), str(folder / "store"), str(out)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, out in enumerate(outputs)
    ]  # fmt: skip
    try:
        for process in processes:
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(out, weights_only=False) for out in outputs]


def assert_same_bits(ours: DraftBlock, theirs: DraftBlock) -> None:
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.usable.tolist() == theirs.usable.tolist()
    assert torch.equal(ours.confidence, theirs.confidence)
    assert (ours.q is None) == (theirs.q is None)
    if ours.q is not None:
        assert torch.equal(ours.q.ids, theirs.q.ids)
        assert torch.equal(ours.q.probs, theirs.q.probs)


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("case", sharded_cases.CASES, ids=lambda c: c.name)
@pytest.mark.known_case(5)
def test_every_rank_draws_what_one_process_draws(
    case: sharded_cases.Case, even: bool, ranks: list[dict[Any, Any]]
) -> None:
    expected = draft_block(case.base(), *case.arguments(), support=case.support, filters=case.filter())
    for result in ranks:
        assert_same_bits(result[case.name, even], expected)


def test_the_cases_reach_what_they_are_for() -> None:
    ties = next(c for c in sharded_cases.CASES if c.name == "ties across shards")
    ids = draft_block(ties.base(), *ties.arguments(), support=ties.support).q.ids
    values = ties.base().gather(2, ids.long())
    last = values.min(dim=-1).values
    assert ((ties.base() == last.unsqueeze(-1)).sum(dim=-1) > (values == last.unsqueeze(-1)).sum(dim=-1)).all()
    spoilt = next(c for c in sharded_cases.CASES if c.spoil)
    assert draft_block(spoilt.base(), *spoilt.arguments(), support=spoilt.support).usable.tolist() == [2, 0, 3]


def test_bad_arguments_are_named(ranks: list[dict[Any, Any]]) -> None:
    for result in ranks:
        expected = ("bounds: expected", "bounds: expected", "base_logits: expected", "support: expected", "head.w2: ex")
        for message, start in zip(result["errors"], expected, strict=True):
            assert message.startswith(start)
