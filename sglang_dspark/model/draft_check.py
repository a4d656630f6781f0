"""Check a draft checkpoint against the target it is to serve, from configuration and tensor headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.model.checkpoint import CheckpointError, DraftConfig, Family, read_draft_config

Shapes = dict[str, tuple[int, ...]]

# Families whose layers are plain Qwen3 ones, so that every tensor can be checked.
_QWEN3_LAYERS = (Family.DEEPSPEC_DSPARK, Family.DEEPSPEC_DFLASH, Family.ZLAB_DFLASH, Family.SPECFORGE)


@dataclass(frozen=True)
class DraftReading:
    """What a draft checkpoint was read as.

    Attributes:
        config: its configuration.
        tensors: how many tensors its files hold; 0 for a draft inside the target's checkpoint.
        parameters: how many numbers these hold.
        notes: what a reader should know, none of them an error.
    """

    config: DraftConfig
    tensors: int
    parameters: int
    notes: tuple[str, ...]


def check_draft(path: Path | str, target_config: dict[str, Any]) -> DraftReading:
    """Read the checkpoint `path` and compare it with the target's `config.json` (as a dictionary).

    Raises:
        CheckpointError: it is incomplete, contradicts itself or does not fit the target. The message names the field
            or tensor, and what to do.
    """
    config = read_draft_config(path)
    _check_against_target(config, target_config, str(path))
    notes = []
    if config.sample_from_anchor is None:
        notes.append(f"slot 0: {config.layout_reason}")
    if config.family is Family.EMBEDDED:
        return DraftReading(config, 0, 0, (*notes, "weights are part of the target's checkpoint"))
    shapes = read_shapes(Path(path))
    _check_tensors(config, shapes, str(path))
    if config.markov_rank == 0:
        notes.append("no Markov head: a DFlash draft, positions are drafted independently")
    if config.draft_vocab_size:
        notes.append(f"proposes {config.draft_vocab_size} of the target's {config.vocab_size} tokens")
    if not config.enable_confidence_head:
        notes.append("no confidence head: survival cannot be predicted, only measured")
    return DraftReading(config, len(shapes), sum(_count(shape) for shape in shapes.values()), tuple(notes))


def read_shapes(folder: Path) -> Shapes:
    """Tensor shapes from the headers of the folder's safetensors files, a leading `model.` removed from names.

    Raises:
        CheckpointError: there is no such file, or one is damaged.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"draft checkpoint {folder}: no *.safetensors file; other weight formats are not read")
    shapes: Shapes = {}
    for file in files:
        try:
            with safe_open(str(file), framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    shapes[name.removeprefix("model.")] = tuple(tensors.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: damaged or not a safetensors file ({error})") from error
    return shapes


def _check_against_target(config: DraftConfig, target: dict[str, Any], where: str) -> None:
    text = target.get("text_config") if isinstance(target.get("text_config"), dict) else target
    assert isinstance(text, dict)
    vocabulary, hidden, layers = (text.get(k) for k in ("vocab_size", "hidden_size", "num_hidden_layers"))
    if vocabulary is not None and config.vocab_size != vocabulary:
        raise CheckpointError(
            f"draft checkpoint {where}: vocab_size is {config.vocab_size}, the target's is {vocabulary}; draft and "
            "target share their embedding and lm_head, so use a draft trained for this target"
        )
    if hidden is not None and config.hidden_size != hidden:
        raise CheckpointError(
            f"draft checkpoint {where}: hidden_size is {config.hidden_size}, the target's is {hidden}; use a draft "
            "trained for this target"
        )
    if config.mask_token_id >= config.vocab_size:
        raise CheckpointError(
            f"draft checkpoint {where}: mask_token_id {config.mask_token_id} is outside the embedding of "
            f"{config.vocab_size} tokens"
        )
    if layers is not None:
        outside = [i for i in config.target_layer_ids if not -1 <= i < layers]
        if outside:
            raise CheckpointError(
                f"draft checkpoint {where}: target_layer_ids {outside} name layers the target does not have (it has "
                f"0..{layers - 1}; -1 is the embedding)"
            )


def _check_tensors(config: DraftConfig, shapes: Shapes, where: str) -> None:
    missing, wrong = [], []
    for name, expected in expected_shapes(config).items():
        found = shapes.get(name)
        if found is None:
            missing.append(name)
        elif found != expected:
            wrong.append(f"{name} is {list(found)}, the configuration implies {list(expected)}")
    if missing:
        heads = {name.split(".")[0] for name in missing} & {"markov_head", "confidence_head"}
        hint = f"; {' and '.join(sorted(heads))} declared in config.json without weights" if heads else ""
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        raise CheckpointError(f"draft checkpoint {where}: missing tensors {shown}{hint}")
    if wrong:
        raise CheckpointError(f"draft checkpoint {where}: {'; '.join(wrong[:4])}")


def expected_shapes(config: DraftConfig) -> Shapes:
    """Shapes of the tensors a checkpoint of this configuration has to hold (those that are known for its family)."""
    hidden, rank, vocabulary = config.hidden_size, config.markov_rank, config.vocab_size
    shapes: Shapes = {
        "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    if config.family in (Family.SPECULATORS, Family.LFM2):
        shapes = {}  # names of the backbone, and a vocabulary of its own, are left to the loader
    if config.family in _QWEN3_LAYERS and config.architecture != "Gemma4DSparkModel":
        for layer in range(config.num_hidden_layers):
            shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in _layer_shapes(config).items()}
    if config.draft_vocab_size and config.family is not Family.SPECULATORS:
        shapes["d2t"] = (config.draft_vocab_size,)
    if rank > 0 and config.family is not Family.SPECULATORS:
        shapes["markov_head.markov_w1.weight"] = (vocabulary, rank)
        shapes["markov_head.markov_w2.weight"] = (config.draft_vocab_size or vocabulary, rank)
        if config.markov_head_type == "gated":
            shapes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
        if config.markov_head_type == "rnn":
            shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
            shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if config.enable_confidence_head:
        width = hidden + (rank if config.confidence_head_with_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def _layer_shapes(config: DraftConfig) -> Shapes:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
