"""Features are the outputs of the layers that were named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sglang_dspark.train.data import Row
from sglang_dspark.train.generate import decode
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.loop import Trainer
from sglang_dspark.train.main import _shape
from sglang_dspark.train.settings import DraftSettings, TrainSettings
from sglang_dspark.train.target import Target, import_transformers

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


FAMILIES = {
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "gemma": (
        "Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 8, "final_logit_softcapping": 5.0, "sliding_window": 16}
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_targets_of_other_families(family: str, tmp_path: Path) -> None:
    """Features give the model's own distribution, a draft starts, and its loss falls."""
    transformers = import_transformers()
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, **extra,
    )  # fmt: skip
    model = getattr(transformers, model_class)(config).eval()
    model.save_pretrained(tmp_path)
    target = Target(tmp_path, torch.float32)
    generator = torch.Generator().manual_seed(0)
    texts = decode(target, [(5, 9, 11), (7, 3)] * 4, 1.0, 16, generator)
    rows = [Row("x", str(i), 1.0, (5, 9, 11) if i % 2 == 0 else (7, 3), text) for i, text in enumerate(texts)]
    rows = [row for row in rows if len(row.r) > 1]
    features = target.features(rows[:1], (0, 1), 40)[0]
    with torch.no_grad():
        expected = model(torch.tensor([rows[0].tokens])).logits[0, len(rows[0].p) : -1].softmax(-1)
    found = torch.zeros_like(expected).scatter(1, features.top_ids.long(), features.top_probs.float())
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0.02)
    with torch.no_grad():
        embedded = model.get_input_embeddings()(torch.tensor([3, 8]))
    torch.testing.assert_close(target.embedding[torch.tensor([3, 8])], embedded)
    shape = _shape(DraftSettings(block_size=3, markov_rank=4, layers=1), target.config)
    settings = TrainSettings(minutes=0, steps=40, learning_rate=5e-3, warmup_steps=2, validate_every=0, save_every=0)
    run = Trainer(from_target(shape, target, 0), target, rows, [], settings, tmp_path / "run")
    losses = [run.train_step()["loss"] for _ in range(40)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
