"""Known case 17: row k sees the accepted tokens before it."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.ops.penalties import Penalties, penalise_rows

V = 11


def plain(logits: torch.Tensor, output: list[int], penalties: Penalties) -> torch.Tensor:
    """What the engine's plain sampler does to one row after `output`: additive penalties, then the scaling one."""
    row = logits.clone()
    for token in range(V):
        count = output.count(token)
        row[token] -= penalties.frequency * count + penalties.presence * (count > 0)
    if len(output) < penalties.min_new_tokens:
        row[list(penalties.stop_ids)] = float("-inf")
    for token in set(output):
        row[token] = row[token] / penalties.repetition if row[token] > 0 else row[token] * penalties.repetition
    return row


@pytest.mark.parametrize(
    "penalties",
    [
        Penalties(repetition=1.3),
        Penalties(frequency=0.7, presence=0.2),
        Penalties(min_new_tokens=6, stop_ids=(2, 5)),
        Penalties(frequency=-0.5, presence=1.5, repetition=0.8, min_new_tokens=4, stop_ids=(2,)),
    ],
    ids=str,
)
@pytest.mark.known_case(17)
def test_every_row_equals_plain_decoding_there(penalties: Penalties) -> None:
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    output, drafted = [3, 3, 7], [3, 9, 3]
    expected = torch.stack([plain(logits[k], output + drafted[:k], penalties) for k in range(4)])
    penalise_rows(logits, output, drafted, penalties)
    torch.testing.assert_close(logits, expected)


def test_row_count_is_checked() -> None:
    with pytest.raises(ValueError, match="logits"):
        penalise_rows(torch.zeros(2, V), [1], [1, 2], Penalties(frequency=1))
