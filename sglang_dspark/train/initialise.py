"""Start a draft from the target's own last layers.

The first draft layer then reads injected features the way the target's last layer reads its input, so that attention
is meaningful from the first step on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_dspark.errors import ConfigError
from sglang_dspark.model.draft import DraftShape, DSparkDraft
from sglang_dspark.model.draft_vocabulary import DraftVocabulary
from sglang_dspark.model.heads import VanillaMarkov
from sglang_dspark.train.target import Target

# Targets whose layers compute what a draft's do, but for norms of q and k.
_READABLE = ("llama", "mistral", "qwen2", "qwen3")
_COPIED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm", "input_layernorm")


@torch.no_grad()
def from_target(shape: DraftShape, target: Target, seed: int, vocabulary: DraftVocabulary | None = None) -> DSparkDraft:
    """A fresh draft; layer i of n starts as the target's layer `last - n + 1 + i`.

    `vocabulary`: the tokens it may propose, where `shape` reduces them.

    Of a target with layers of another kind only the head is read.

    Raises:
        ConfigError: the target's layers have other sizes than the draft's.
    """
    torch.manual_seed(seed)
    draft = DSparkDraft(shape, vocabulary)
    weights = {name: tensor.float() for name, tensor in target.model.state_dict().items()}
    layers, hidden = int(target.config["num_hidden_layers"]), shape.hidden_size
    sources = [f"model.layers.{layers - shape.num_hidden_layers + i}." for i in range(shape.num_hidden_layers)]
    if isinstance(draft.markov_head, VanillaMarkov):
        _initialise_markov(draft.markov_head, target.embedding.float())
    draft.confidence_head.proj.weight.zero_()
    draft.confidence_head.proj.bias.zero_()
    if target.config.get("model_type") not in _READABLE:
        return draft  # its layers compute something else than the draft's: they start at random
    # Pass the last feature layer through and drop the others; training mixes them in.
    draft.fc.weight.zero_()
    draft.fc.weight[:, -hidden:] = torch.eye(hidden)
    reader = weights[sources[-1] + "input_layernorm.weight"]
    draft.hidden_norm.weight.copy_(reader)
    draft.norm.weight.copy_(weights["model.norm.weight"])
    for layer, source in zip(draft.layers, sources, strict=True):
        for name in _COPIED:
            _copy(layer.get_submodule(name), weights[f"{source}{name}.weight"])
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight = weights[f"{source}self_attn.{name}.weight"]
            _copy(layer.get_submodule(f"self_attn.{name}"), weight)
        own = weights[source + "input_layernorm.weight"]
        for name in ("q", "k"):
            norm = layer.get_submodule(f"self_attn.{name}_norm")
            if f"{source}self_attn.{name}_norm.weight" in weights:
                _copy(norm, weights[f"{source}self_attn.{name}_norm.weight"])
            else:  # restore the size its projections have
                size = _typical_norm(weights[f"{source}self_attn.{name}_proj.weight"] * own)
                norm.get_parameter("weight").fill_(size)
    return draft


def _copy(module: torch.nn.Module, weight: Tensor) -> None:
    parameter = module.get_parameter("weight")
    if parameter.shape != weight.shape:
        raise ConfigError(f"a draft layer needs {tuple(parameter.shape)}, the target's has {tuple(weight.shape)}")
    parameter.copy_(weight)


def _typical_norm(weight: Tensor) -> float:
    """Root mean square of a head's projection of unit-variance input: the scale a q or k norm has to restore."""
    return float(weight.square().sum(-1).mean().sqrt())


def _initialise_markov(head: VanillaMarkov, embedding: Tensor) -> None:
    """W1: the embedding's main axes, so that similar tokens start with similar rows. W2: zero, so no bias at first."""
    rank = head.markov_w1.weight.shape[1]
    centred = embedding - embedding.mean(0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -rank:]
    projected = centred @ axes
    head.markov_w1.weight.copy_(projected / projected.std())
    head.markov_w2.weight.zero_()
