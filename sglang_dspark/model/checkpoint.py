"""Read a draft checkpoint's configuration, whichever project wrote it, into one form.

What differs between the families: where the fields are, how layers are numbered, and whether a block's slot 0 (the
anchor's own) is a prediction. Imports neither torch nor the engine, so that a server can check before it starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sglang_dspark.errors import DSparkError


class CheckpointError(DSparkError, ValueError):
    """A draft checkpoint that cannot be served; the message names the file and the field."""


class Family(StrEnum):
    DEEPSPEC_DSPARK = "deepspec-dspark"
    DEEPSPEC_DFLASH = "deepspec-dflash"
    ZLAB_DFLASH = "z-lab-dflash"
    SPECULATORS = "speculators"
    SPECFORGE = "specforge"
    LFM2 = "lfm2"
    EMBEDDED = "embedded"


DEEPSPEC_ARCHITECTURES = ("Qwen3DSparkModel", "Gemma4DSparkModel", "LingDSparkModel")
MARKOV_HEADS = ("vanilla", "gated", "rnn")
# What a family's slot 0 means when the checkpoint does not say. None: only a measurement tells.
_SLOT0_PREDICTS: dict[Family, bool | None] = {
    Family.DEEPSPEC_DSPARK: True,
    Family.DEEPSPEC_DFLASH: True,
    Family.ZLAB_DFLASH: False,
    Family.SPECULATORS: False,  # its default before the field existed
    Family.SPECFORGE: None,
    Family.LFM2: True,
    Family.EMBEDDED: True,
}
_EMBEDDED_KEYS = ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank")


@dataclass(frozen=True)
class DraftConfig:
    """A draft's configuration.

    Attributes:
        gamma: tokens drafted a round: `block_size`, less one where slot 0 is dropped.
        target_layer_ids: layers whose outputs are injected; -1 is the embedding.
        sample_from_anchor: whether slot 0 predicts; None where only a measurement can tell.
        layout_reason: what `sample_from_anchor` was concluded from.
        draft_vocab_size: tokens it can propose, where these are not all; 0: all.
        rope_interleaved: rotary pairs are neighbours (GPT-J style) instead of halves.
    """

    family: Family
    architecture: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    block_size: int
    gamma: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int
    markov_head_type: str
    markov_activation: str
    markov_first_position: bool
    enable_confidence_head: bool
    confidence_head_with_markov: bool
    sample_from_anchor: bool | None
    layout_reason: str
    rope_theta: float
    rope_interleaved: bool
    rms_norm_eps: float
    draft_vocab_size: int = 0


def read_draft_config(path: Path | str) -> DraftConfig:
    """Read `config.json` of the folder `path`.

    Raises:
        CheckpointError: no such folder or file, an unknown family, or a field that is missing or makes no sense.
    """
    file = Path(path) / "config.json"
    if not Path(path).is_dir():
        raise CheckpointError(f"draft checkpoint {path}: no such folder; give the folder that holds config.json")
    if not file.is_file():
        raise CheckpointError(f"draft checkpoint {path}: holds no config.json")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return parse_draft_config(raw, str(file))


def find_family(raw: dict[str, Any], where: str = "config.json") -> Family:
    """Which project's layout a configuration has.

    Raises:
        CheckpointError: none that is known.
    """
    architectures = [str(name) for name in raw.get("architectures") or []]
    if any(raw.get(key) is not None for key in _EMBEDDED_KEYS):
        return Family.EMBEDDED
    if "speculators_model_type" in raw or "transformer_layer_config" in raw:
        return Family.SPECULATORS
    if "Lfm2DSparkDraftModel" in architectures:
        return Family.LFM2
    if "DFlashDraftModel" in architectures:
        return Family.ZLAB_DFLASH
    if "DSparkDraftModel" in architectures:
        return Family.SPECFORGE
    if any(name in DEEPSPEC_ARCHITECTURES for name in architectures):
        return Family.DEEPSPEC_DSPARK if int(raw.get("markov_rank") or 0) > 0 else Family.DEEPSPEC_DFLASH
    raise CheckpointError(
        f"{where}: architectures {architectures} is no DSpark or DFlash draft; known are "
        f"{', '.join(DEEPSPEC_ARCHITECTURES)}, DFlashDraftModel, DSparkDraftModel, Lfm2DSparkDraftModel and the "
        "speculators format"
    )


def parse_draft_config(raw: dict[str, Any], where: str = "config.json") -> DraftConfig:
    """As `read_draft_config`, from the parsed JSON; `where` is named in errors."""
    family = find_family(raw, where)
    fields = _Fields(raw, family, where)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    block = fields.integer("block_size", "dspark_block_size")
    predicts, reason = _layout(fields, family)
    gamma = block - 1 if predicts is False else block
    if gamma < 1:
        raise CheckpointError(f"{where}: block_size {block} leaves nothing to draft ({reason})")
    rank = fields.integer("markov_rank", "dspark_markov_rank", default=0, least=0)
    kind = str(fields.get("markov_head_type", "dspark_markov_head_type", default="vanilla")).lower()
    if rank > 0 and kind not in MARKOV_HEADS:
        raise CheckpointError(f"{where}: markov_head_type {kind!r} is unknown; known are {', '.join(MARKOV_HEADS)}")
    activation = str(fields.get("markov_activation", default="none") or "none").lower()
    if activation not in ("none", "silu"):
        raise CheckpointError(f"{where}: markov_activation {activation!r} is unknown; known are none and silu")
    confidence = bool(fields.get("enable_confidence_head", default=rank > 0))
    vocabulary = fields.integer("vocab_size")
    reduced = fields.integer("draft_vocab_size", default=vocabulary)
    if reduced > vocabulary:
        raise CheckpointError(f"{where}: draft_vocab_size {reduced} is above vocab_size {vocabulary}")
    return DraftConfig(
        family=family,
        architecture=str((raw.get("architectures") or [""])[0]),
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=fields.integer("num_hidden_layers", "num_nextn_predict_layers"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=fields.integer("head_dim", default=hidden // heads),
        intermediate_size=fields.integer("intermediate_size", "moe_intermediate_size"),
        block_size=block,
        gamma=gamma,
        target_layer_ids=_layer_ids(fields, family, where),
        mask_token_id=fields.integer("mask_token_id", "dspark_noise_token_id", least=0),
        markov_rank=rank,
        markov_head_type=kind,
        markov_activation=activation,
        markov_first_position=bool(fields.get("markov_first_position", default=True)),
        enable_confidence_head=confidence,
        confidence_head_with_markov=bool(fields.get("confidence_head_with_markov", default=rank > 0)),
        sample_from_anchor=predicts,
        layout_reason=reason,
        rope_theta=_rope_theta(fields, where),
        rope_interleaved=family is Family.LFM2,
        rms_norm_eps=float(fields.get("rms_norm_eps", default=1e-6)),
        draft_vocab_size=reduced if reduced < vocabulary else 0,
    )


class _Fields:
    """Looks a field up at the top and in the family's nested sections."""

    def __init__(self, raw: dict[str, Any], family: Family, where: str) -> None:
        nested = ("dspark_config", "dflash_config", "transformer_layer_config", "text_config")
        self.sections = [raw] + [raw[name] for name in nested if isinstance(raw.get(name), dict)]
        self.where = where

    def get(self, *names: str, default: Any = None) -> Any:
        for section in self.sections:
            for name in names:
                if section.get(name) is not None:
                    return section[name]
        return default

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(*names, default=default)
        if value is None:
            raise CheckpointError(f"{self.where}: {names[0]} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise CheckpointError(f"{self.where}: {names[0]} is {value!r}, expected an integer of at least {least}")
        return value


def _layout(fields: _Fields, family: Family) -> tuple[bool | None, str]:
    explicit = fields.get("sample_from_anchor")
    if explicit is not None:
        return bool(explicit), f"sample_from_anchor is {bool(explicit)}"
    if fields.get("num_anchors") is not None:
        return True, "num_anchors is present, which the DeepSpec layout writes"
    predicts = _SLOT0_PREDICTS[family]
    if predicts is None:
        return None, f"{family} checkpoints do not say; measured when the model is loaded"
    return predicts, f"the default of {family} checkpoints"


def _layer_ids(fields: _Fields, family: Family, where: str) -> tuple[int, ...]:
    name, shift = "target_layer_ids", 0
    ids = fields.get(name, "dspark_target_layer_ids")
    if ids is None and family is Family.SPECULATORS:
        # Counted as hidden states are, where 0 is the embedding and i + 1 the output of layer i.
        name, shift = "aux_hidden_state_layer_ids", -1
        ids = fields.get(name)
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        raise CheckpointError(f"{where}: {name} is {ids!r}, expected a non-empty list of integers")
    return tuple(i + shift for i in ids)


def _rope_theta(fields: _Fields, where: str) -> float:
    value = fields.get("rope_theta")
    if value is None:
        rope = fields.get("rope_parameters", "rope_scaling", default={})
        # Per-layer-type parameters (Gemma): the full-attention ones.
        rope = rope.get("full_attention", rope)
        value = rope.get("rope_theta", 10000.0)
    if not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"{where}: rope_theta is {value!r}, expected a positive number")
    return float(value)
