"""Read a draft model's sequential and confidence heads into the plain weights the operations take."""

from __future__ import annotations

from typing import Any

from sglang.srt.models.dspark import GatedMarkovHead, RNNHead

from sglang_dspark.errors import ConfigError
from sglang_dspark.ops.draft_block import Activation, ConfidenceHead, HeadKind, MarkovHead


def markov_head_of(draft_model: Any, hf_config: Any) -> MarkovHead:
    """The sequential head of an SGLang draft model; `markov_activation` and `markov_first_position` from its config.

    Raises:
        ConfigError: a `markov_activation` this project does not know.
    """
    head = draft_model.markov_head
    activation: Activation = getattr(hf_config, "markov_activation", "none") or "none"
    if activation not in ("none", "silu"):
        raise ConfigError(f"draft config.json, markov_activation: {activation!r}; known are 'none' and 'silu'")
    kind: HeadKind = "rnn" if isinstance(head, RNNHead) else "gated" if isinstance(head, GatedMarkovHead) else "vanilla"
    joint = {"rnn": "joint_proj", "gated": "gate_proj"}.get(kind)
    layer = getattr(head, joint) if joint else None
    return MarkovHead(
        kind=kind,
        w1=head.markov_w1.weight,
        w2=head.markov_w2.weight,
        joint=None if layer is None else layer.weight,
        joint_bias=None if layer is None else layer.bias,
        activation=activation,
        first_position=bool(getattr(hf_config, "markov_first_position", True)),
    )


def confidence_head_of(draft_model: Any) -> ConfidenceHead | None:
    """The confidence head of an SGLang draft model, or None when the checkpoint has none."""
    head = draft_model.confidence_head
    if head is None:
        return None
    return ConfidenceHead(head.proj.weight, head.proj.bias, head.with_markov)
