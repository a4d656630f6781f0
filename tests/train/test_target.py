"""Features are the outputs of the layers that were named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sglang_dspark.train.data import Row
from sglang_dspark.train.target import Target

LAYERS = 3  # of the tiny target, all but the last: its output passes the final norm


@pytest.fixture
def tagged(target: Target) -> Iterator[Target]:
    """The target with layer i's output replaced by the constant i + 100."""

    def tag(index: int) -> object:
        def replace(_: object, __: object, output: object) -> object:
            hidden = output[0] if isinstance(output, tuple) else output
            constant = torch.full_like(hidden, index + 100.0)
            return (constant, *output[1:]) if isinstance(output, tuple) else constant

        return replace

    # Before the library's own hooks, which record the layers' outputs.
    layers = target.model.model.layers[:LAYERS]
    hooks = [layer.register_forward_hook(tag(i), prepend=True) for i, layer in enumerate(layers)]
    yield target
    for hook in hooks:
        hook.remove()


@pytest.mark.known_case(14)
@pytest.mark.parametrize("layer_ids", [(0,), (1, 2), (2, 0), (-1, 1)], ids=str)
def test_layer_i_means_the_output_of_layer_i(tagged: Target, rows: list[Row], layer_ids: tuple[int, ...]) -> None:
    hidden, _ = tagged.hidden_states(rows[:1], layer_ids)
    for part, layer in zip(hidden.chunk(len(layer_ids), dim=-1), layer_ids, strict=True):
        if layer < 0:  # the embedding
            ids = torch.tensor(rows[0].tokens)
            torch.testing.assert_close(part[0], tagged.embedding[ids].to(part.dtype))
        else:
            assert part.unique().tolist() == [layer + 100.0]
