"""A draft checkpoint with a reduced vocabulary inside the engine, whose model classes do not know of one.

When weights are loaded, `W2` gets a row for every token of the target, zero where the draft has none, so that the
engine's own round can run with it; our round reads base logits of the draft's tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
from sglang.srt.models import dspark as engine_models
from torch import Tensor, nn

from sglang_dspark.model.checkpoint import CheckpointError
from sglang_dspark.model.draft_vocabulary import DraftVocabulary

LOADER = "sglang.srt.models.dspark.DSparkDraftMixin.load_weights"
_W2 = "markov_head.markov_w2.weight"


def register_hook() -> None:
    """Read reduced checkpoints in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(LOADER, load_weights, HookType.AROUND)


def load_weights(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, Tensor]]) -> Any:
    """Around the engine's loader of draft weights."""
    size = int(getattr(model.config, "draft_vocab_size", None) or 0)
    if not size or size == int(model.config.vocab_size):
        return original(model, weights)
    return original(model, _whole(model, weights))


def _whole(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights as the engine's classes expect them; notes the vocabulary on the model."""
    held: tuple[str, Tensor] | None = None
    vocabulary: DraftVocabulary | None = None
    for name, weight in weights:
        own = name.removeprefix("model.")
        if own == "d2t":
            vocabulary = DraftVocabulary.from_offsets(weight, int(model.config.vocab_size), "draft checkpoint")
        elif own == _W2:
            held = (name, weight)
        elif own != "t2d":
            yield name, weight
    if vocabulary is None or held is None:
        raise CheckpointError(f"draft checkpoint: draft_vocab_size is set and {'d2t' if held else _W2} is missing")
    model.draft_vocabulary = vocabulary
    yield held[0], vocabulary.expand(held[1])


class ReducedHead(nn.Module):
    """The target's lm_head rows of the tokens that a draft can propose.

    Attributes:
        ids: `[Vd]` int64, those tokens, ascending.
        weight: `[Vd, H]`.
    """

    quant_method = None

    def __init__(self, vocabulary: DraftVocabulary, lm_head: Any) -> None:
        super().__init__()
        self.ids = vocabulary.ids.to(lm_head.weight.device)
        self.weight = nn.Parameter(lm_head.weight.data[self.ids], requires_grad=False)

    def base_logits(self, model: Any, hidden: Tensor) -> Tensor:
        """`DSparkDraftMixin.compute_base_logits` for these tokens: `[N, H]` -> `[N, Vd]`."""
        if model.logits_mup_width_multiplier:
            hidden = hidden / model.logits_mup_width_multiplier
        return engine_models.project_through_lm_head(hidden, self)


def reduced_head_of(draft_model: Any) -> ReducedHead | None:
    """The head of a draft with a reduced vocabulary, None where it proposes every token."""
    vocabulary = getattr(draft_model, "draft_vocabulary", None)
    return None if vocabulary is None else ReducedHead(vocabulary, draft_model.lm_head)


def not_covered(draft_model: Any) -> str:
    """Why our round cannot reduce this draft's vocabulary, empty when it can or has not to."""
    if getattr(draft_model, "draft_vocabulary", None) is None:
        return ""
    lm_head = draft_model.lm_head
    if int(getattr(lm_head, "tp_size", 1)) > 1:
        return "reduced draft vocabulary under tensor parallelism"
    if should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None)):
        return "reduced draft vocabulary over a quantized lm_head"
    return ""
