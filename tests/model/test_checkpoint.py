"""Reading draft configurations of every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.model.checkpoint import CheckpointError, Family, parse_draft_config, read_draft_config

BASE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
DEEPSPEC = BASE | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 7,
    "target_layer_ids": [1, 3],
    "mask_token_id": 9,
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "num_anchors": 512,
    "rope_theta": 1e6,
}
ZLAB = BASE | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 3]},
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
}
SPECULATORS = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "transformer_layer_config": BASE,
    "aux_hidden_state_layer_ids": [2, 4],
    "block_size": 8,
    "mask_token_id": 9,
    "markov_rank": 8,
}
SPECFORGE = BASE | {
    "architectures": ["DSparkDraftModel"],
    "block_size": 7,
    "dflash_config": {
        "projector_type": "dspark",
        "mask_token_id": 9,
        "target_layer_ids": [1, 3],
        "markov_rank": 8,
        "markov_head_type": "gated",
    },
}
LFM2 = DEEPSPEC | {"architectures": ["Lfm2DSparkDraftModel"]}
EMBEDDED = BASE | {
    "architectures": ["DeepseekV4ForCausalLM"],
    "dspark_block_size": 5,
    "dspark_noise_token_id": 9,
    "dspark_target_layer_ids": [1, 3],
    "dspark_markov_rank": 8,
}


@pytest.mark.parametrize(
    ("raw", "family", "predicts", "gamma"),
    [
        (DEEPSPEC, Family.DEEPSPEC_DSPARK, True, 7),
        (DEEPSPEC | {"markov_rank": 0, "enable_confidence_head": False}, Family.DEEPSPEC_DFLASH, True, 7),
        (ZLAB, Family.ZLAB_DFLASH, False, 15),
        (SPECULATORS, Family.SPECULATORS, False, 7),
        (SPECFORGE, Family.SPECFORGE, None, 7),
        (LFM2, Family.LFM2, True, 7),
        (EMBEDDED, Family.EMBEDDED, True, 5),
    ],
)
@pytest.mark.known_case(13)
def test_families(raw: dict[str, Any], family: Family, predicts: bool | None, gamma: int) -> None:
    config = parse_draft_config(raw)
    assert (config.family, config.sample_from_anchor, config.gamma) == (family, predicts, gamma)
    assert config.target_layer_ids == (1, 3)
    assert config.mask_token_id == 9
    assert config.head_dim == 16
    assert config.rope_interleaved == (family is Family.LFM2)


@pytest.mark.known_case(13)
def test_layout_precedence() -> None:
    """Explicit field, then num_anchors, then the family; a Markov head says nothing."""
    assert parse_draft_config(DEEPSPEC | {"sample_from_anchor": False}).gamma == 6
    assert parse_draft_config(ZLAB | {"num_anchors": 4}).sample_from_anchor is True
    assert parse_draft_config(ZLAB | {"num_anchors": 4, "sample_from_anchor": False}).sample_from_anchor is False
    assert parse_draft_config(ZLAB | {"markov_rank": 8}).sample_from_anchor is False
    assert parse_draft_config(SPECULATORS | {"sample_from_anchor": True}).gamma == 8
    assert "num_anchors" in parse_draft_config(ZLAB | {"num_anchors": 4}).layout_reason


def test_block_size_nested_and_rope_theta_places() -> None:
    nested = {k: v for k, v in ZLAB.items() if k != "block_size"}
    nested["dflash_config"] = ZLAB["dflash_config"] | {"block_size": 8}
    assert parse_draft_config(nested).block_size == 8
    assert parse_draft_config(DEEPSPEC).rope_theta == 1e6
    assert parse_draft_config(ZLAB).rope_theta == 5e5
    layered = {"rope_parameters": {"full_attention": {"rope_theta": 2e6}, "sliding_attention": {"rope_theta": 1e4}}}
    assert parse_draft_config(ZLAB | layered).rope_theta == 2e6


@pytest.mark.known_case(14)
def test_embedding_layer_of_speculators() -> None:
    assert parse_draft_config(SPECULATORS | {"aux_hidden_state_layer_ids": [0, 4]}).target_layer_ids == (-1, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "no DSpark or DFlash draft"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": 1, "sample_from_anchor": False}, "leaves nothing to draft"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"markov_head_type": "lstm"}, "'lstm' is unknown"),
        ({"markov_activation": "gelu"}, "markov_activation"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"rope_theta": -1}, "rope_theta"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_draft_config(DEEPSPEC | change)


def test_bad_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        read_draft_config(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_draft_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_draft_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="JSON object"):
        read_draft_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(DEEPSPEC))
    assert read_draft_config(str(tmp_path)).gamma == 7
