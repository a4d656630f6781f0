"""Reduced vocabularies: which tokens, the published map, and a draft with one in the plain loop."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.model.checkpoint import CheckpointError
from sglang_dspark.model.draft_vocabulary import DraftVocabulary, most_frequent


def test_offsets_are_the_published_map() -> None:
    vocabulary = DraftVocabulary(torch.tensor([0, 3, 4, 9]), 12)
    assert vocabulary.offsets.tolist() == [0, 2, 2, 6]
    assert vocabulary.member.nonzero().squeeze(1).tolist() == [0, 3, 4, 9]
    assert vocabulary.index.tolist() == [0, -1, -1, 1, 2, -1, -1, -1, -1, 3, -1, -1]
    again = DraftVocabulary.from_offsets(vocabulary.offsets, 12, "here")
    assert torch.equal(again.ids, vocabulary.ids)


@pytest.mark.parametrize("offsets", [[], [0, 0, -1], [0, -1], [-1, 0], [0, 11]])
def test_maps_that_make_no_sense_are_refused(offsets: list[int]) -> None:
    with pytest.raises(CheckpointError, match="here: d2t does not map to ascending tokens of the target's 12"):
        DraftVocabulary.from_offsets(torch.tensor(offsets, dtype=torch.int64), 12, "here")


def test_expand_puts_rows_in_their_targets_places() -> None:
    vocabulary = DraftVocabulary(torch.tensor([1, 3]), 5)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert vocabulary.expand(rows).tolist() == [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]]


def test_most_frequent() -> None:
    vocabulary, covered = most_frequent([[5, 5, 2, 2, 7], [5, 9]], 3, 10)
    assert vocabulary.ids.tolist() == [2, 5, 7]  # 7 and 9 are equal: the lower one
    assert covered == pytest.approx(6 / 7)
    assert most_frequent([[5, 5, 2]], 2, 10, always=[8])[0].ids.tolist() == [5, 8]
    assert most_frequent([[5]], 3, 10)[0].ids.tolist() == [0, 1, 5]  # what no text uses fills up from below
