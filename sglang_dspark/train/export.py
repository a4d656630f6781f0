"""Write a trained draft as a DeepSpec checkpoint: `config.json` with flat keys and `model.safetensors`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.checkpoint import CheckpointError, Family
from sglang_dspark.model.draft import DraftShape, DSparkDraft
from sglang_dspark.model.draft_check import check_draft
from sglang_dspark.model.draft_vocabulary import DraftVocabulary

ARCHITECTURE = "Qwen3DSparkModel"


def draft_config(shape: DraftShape, target_config: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's `config.json`. Stops and positions are the target's."""
    reduced = {"draft_vocab_size": shape.draft_vocab_size} if shape.draft_vocab_size else {}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        **reduced,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": target_config["max_position_embeddings"],
        "tie_word_embeddings": False,
        "bos_token_id": target_config.get("bos_token_id"),
        "eos_token_id": target_config.get("eos_token_id"),
        "block_size": shape.block_size,
        "num_target_layers": target_config["num_hidden_layers"],
        "target_layer_ids": list(shape.target_layer_ids),
        "mask_token_id": shape.mask_token_id,
        "sample_from_anchor": True,
        "markov_rank": shape.markov_rank,
        "markov_head_type": shape.markov_head_type,
        "markov_activation": shape.markov_activation,
        "markov_first_position": True,
        "enable_confidence_head": True,
        "confidence_head_with_markov": shape.confidence_head_with_markov,
        "torch_dtype": "bfloat16",
    }


def export(
    weights: dict[str, Tensor],
    shape: DraftShape,
    target_config: dict[str, Any],
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write the checkpoint to `folder` (created if missing); each file is replaced atomically.

    Args:
        weights: of `DSparkDraft`, its vocabulary among them where that is reduced.
        dtype: of the weights.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (tensor.detach().to(dtype) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in weights.items()
    }
    if shape.draft_vocab_size:
        tensors["t2d"] = DraftVocabulary.from_offsets(tensors["d2t"], shape.vocab_size, "--run").member
    partial = folder / "model.safetensors.partial"
    save_file(tensors, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)  # the writer leaves it readable by its owner only
    os.replace(partial, folder / "model.safetensors")
    config = json.dumps(draft_config(shape, target_config), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")


def reduced(
    weights: dict[str, Tensor], shape: DraftShape, vocabulary: DraftVocabulary
) -> tuple[dict[str, Tensor], DraftShape]:
    """A draft that proposes only tokens of `vocabulary`, otherwise as it was."""
    if shape.draft_vocab_size:
        raise ConfigError(f"--draft: it has a reduced vocabulary of {shape.draft_vocab_size} tokens already")
    name = "markov_head.markov_w2.weight"
    head = {name: weights[name][vocabulary.ids]} if name in weights else {}
    return {**weights, **head, "d2t": vocabulary.offsets}, replace(shape, draft_vocab_size=len(vocabulary.ids))


def with_zero_head(weights: dict[str, Tensor], shape: DraftShape) -> tuple[dict[str, Tensor], DraftShape]:
    """A DFlash draft with a sequential head that adds nothing: what the engine's DSPARK serves of it.

    So it is measured in the same round as drafts with a head, and drafts as it did.
    """
    if shape.markov_rank > 0:
        raise ConfigError("--zero-head: the draft has a sequential head already")
    reduced = shape.draft_vocab_size or shape.vocab_size
    head = {"markov_head.markov_w1.weight": (shape.vocab_size, 1), "markov_head.markov_w2.weight": (reduced, 1)}
    zeros = {name: torch.zeros(size) for name, size in head.items()}
    return weights | zeros, replace(shape, markov_rank=1, markov_head_type="vanilla", confidence_head_with_markov=False)


def load_draft(folder: Path, dtype: torch.dtype = torch.float32) -> DSparkDraft:
    """Read a DeepSpec checkpoint with Qwen3 layers, as `export` writes, into the torch model in evaluation mode.

    Raises:
        CheckpointError: it is incomplete, or of another family.
    """
    from safetensors.torch import load_file

    config = check_draft(folder, {}).config
    if config.family not in (Family.DEEPSPEC_DSPARK, Family.DEEPSPEC_DFLASH) or config.architecture != ARCHITECTURE:
        raise CheckpointError(f"draft checkpoint {folder}: the torch draft reads {ARCHITECTURE} checkpoints only")
    shape = DraftShape(**{name: getattr(config, name) for name in DraftShape.__dataclass_fields__})
    draft = DSparkDraft(shape).to(dtype)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name.removeprefix("model."): tensor for name, tensor in load_file(str(file)).items()}
    tensors.pop("t2d", None)  # follows from d2t
    draft.load_state_dict(tensors)
    return draft.eval().requires_grad_(False)
