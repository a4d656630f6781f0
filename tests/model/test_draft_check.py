"""A checkpoint's tensors against its configuration and its target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sglang_dspark.model.checkpoint import CheckpointError, parse_draft_config
from sglang_dspark.model.demo import demo_draft_path
from sglang_dspark.model.draft_check import check_draft, expected_shapes

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "block_size": 4,
    "target_layer_ids": [0, 2],
    "mask_token_id": 3,
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
TARGET = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 4}

Edit = Callable[[dict[str, np.ndarray]], None]


def write(folder: Path, change: dict[str, Any] | None = None, edit: Edit | None = None, prefix: str = "") -> Path:
    config = CONFIG | (change or {})
    (folder / "config.json").write_text(json.dumps(config))
    shapes = expected_shapes(parse_draft_config(config))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    if edit:
        edit(tensors)
    save_file({prefix + n: t for n, t in tensors.items()}, str(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_complete_checkpoint(tmp_path: Path, head: str, prefix: str) -> None:
    reading = check_draft(write(tmp_path, {"markov_head_type": head}, prefix=prefix), TARGET)
    assert reading.config.markov_head_type == head
    assert reading.tensors > 20
    assert reading.notes == ()


def test_notes(tmp_path: Path) -> None:
    change = {"markov_rank": 0, "enable_confidence_head": False}
    assert len(check_draft(write(tmp_path, change), TARGET).notes) == 2


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        (TARGET | {"vocab_size": 51}, {}, "vocab_size is 50, the target's is 51"),
        (TARGET | {"hidden_size": 32}, {}, "hidden_size is 16, the target's is 32"),
        (TARGET | {"num_hidden_layers": 2}, {}, r"target_layer_ids \[2\]"),
        (TARGET, {"target_layer_ids": [-2, 0]}, r"target_layer_ids \[-2\]"),
        (TARGET, {"mask_token_id": 50}, "mask_token_id 50 is outside"),
    ],
)
def test_misfits_with_the_target(tmp_path: Path, target: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_draft(write(tmp_path, change), target)


def test_nested_target_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="vocab_size"):
        check_draft(write(tmp_path), {"text_config": TARGET | {"vocab_size": 7}})


@pytest.mark.parametrize("name", ["markov_head.markov_w2.weight", "confidence_head.proj.bias"])
def test_declared_head_without_tensors(tmp_path: Path, name: str) -> None:
    def drop(tensors: dict[str, np.ndarray]) -> None:
        del tensors[name]

    with pytest.raises(CheckpointError, match=f"missing tensors {name}.*declared in config.json without weights"):
        check_draft(write(tmp_path, edit=drop), TARGET)


def test_missing_backbone_tensor(tmp_path: Path) -> None:
    def drop(tensors: dict[str, np.ndarray]) -> None:
        del tensors["layers.1.self_attn.k_norm.weight"]

    with pytest.raises(CheckpointError, match="k_norm"):
        check_draft(write(tmp_path, edit=drop), TARGET)


def test_wrong_shape(tmp_path: Path) -> None:
    def reshape(tensors: dict[str, np.ndarray]) -> None:
        tensors["fc.weight"] = np.zeros((16, 16), np.float32)

    with pytest.raises(CheckpointError, match=r"fc.weight is \[16, 16\], the configuration implies \[16, 32\]"):
        check_draft(write(tmp_path, edit=reshape), TARGET)


def test_no_weights_and_damaged_weights(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match="damaged"):
        check_draft(tmp_path, TARGET)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no .*safetensors file"):
        check_draft(tmp_path, TARGET)


def test_the_demo_draft_is_whole() -> None:
    target = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30}
    reading = check_draft(demo_draft_path(), target)
    assert reading.config.gamma >= 4
    size = sum(file.stat().st_size for file in demo_draft_path().iterdir())
    assert size <= 30_000_000
