"""Settings of a training run: of the draft and of its training. Each field is the flag of the same name."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.loss import LossWeights

Head = Literal["vanilla", "gated", "rnn", "none"]
Activation = Literal["none", "silu"]


def _flag(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class DraftSettings:
    """What is trained."""

    layers: int = _flag("Draft layers.", 2)
    block_size: int = _flag("Gamma: tokens drafted a round.", 5)
    target_layer_ids: tuple[int, ...] = _flag("Layers whose outputs the draft reads. None given: four, spread.", ())
    mask_token_id: int = _flag("Token that fills a block behind its anchor.", 0)
    markov_rank: int = _flag("Rank of the Markov head.", 64)
    markov_head: Head = _flag("Sequential head; none: DFlash.", "vanilla")
    markov_activation: Activation = _flag("Of the vanilla and gated heads.", "none")
    draft_vocab_size: int = _flag("Most frequent tokens of --data that the draft proposes. 0: all tokens.", 0)
    max_row_tokens: int = _flag("Answers are cut where they and their prompt have this many. 0: target's context.", 0)

    def __post_init__(self) -> None:
        _check_choices(self)
        if self.markov_head == "rnn" and self.markov_activation != "none":
            raise ConfigError("--markov-activation silu: the rnn head has its own; use vanilla or gated, or none")
        if self.markov_head != "none" and self.markov_rank < 1:
            raise ConfigError(f"--markov-rank {self.markov_rank}: must be 1 or more; --markov-head none is DFlash")
        if self.layers < 1 or self.block_size < 1:
            raise ConfigError(f"--layers {self.layers}, --block-size {self.block_size}: must be 1 or more")
        if self.draft_vocab_size < 0 or self.max_row_tokens < 0 or self.mask_token_id < 0:
            raise ConfigError("--draft-vocab-size, --max-row-tokens and --mask-token-id: must be 0 or more")


@dataclass(frozen=True)
class TrainSettings:
    """How it is trained."""

    seed: int = _flag("Seed of everything random in the run.", 0)
    minutes: float = _flag("Training time; the learning rate falls to zero over it. 0: no limit.", 60.0)
    steps: int = _flag("Steps to train for; reproducible to the bit. 0: no limit.", 0)
    epochs: float = _flag("Passes over the answers; reproducible to the bit. 0: no limit.", 0.0)
    rows_per_step: int = _flag("Answers in a step.", 8)
    micro_rows: int = _flag("Answers in one forward; gradients of a step's parts add up. 0: a step is one part.", 0)
    anchors: int = _flag("Blocks drawn from each answer in a step.", 32)
    rows_per_domain: int = _flag("Most answers of each domain (0: all), for when computing features is the limit.", 0)
    domain_balance: float = _flag("0: blocks in proportion to answers; 1: as many blocks from each domain.", 0.5)
    learning_rate: float = _flag("Peak learning rate of the backbone.", 6e-4)
    markov_learning_rate: float = _flag("Peak learning rate of the Markov head.", 2e-3)
    final_learning_rate: float = _flag("Learning rate at the end, as a share of the peak.", 0.02)
    warmup_steps: int = _flag("Steps over which the learning rate rises.", 100)
    warmup_share: float = _flag("Share of the run over which it rises, in place of --warmup-steps. 0: by steps.", 0.0)
    weight_decay: float = _flag("AdamW weight decay, matrices only.", 0.05)
    beta2: float = _flag("AdamW beta 2.", 0.98)
    gradient_clip: float = _flag("Largest gradient norm.", 1.0)
    feature_dropout: float = _flag("Share of injected feature values dropped.", 0.0)
    ema_decay: float = _flag("Decay of the averaged weights that are exported. 0: none.", 0.999)
    loss_cross_entropy: float = _flag("Weight of the cross-entropy.", 0.1)
    loss_total_variation: float = _flag("Weight of the distance between p and q.", 0.9)
    loss_confidence: float = _flag("Weight of the confidence loss.", 1.0)
    position_decay: float = _flag("Position k weighs exp(-(k-1) / this).", 4.0)
    target_top: int = _flag("Most likely target tokens kept per position; the rest is one bucket.", 64)
    vocabulary_extra: int = _flag("Tokens drawn per step for those no target row names. 0: whole vocabulary.", 2048)
    feature_cache_gib: float = _flag("Memory for target features, computed once; beyond it, each time.", 4.0)
    validation_share: float = _flag("Share of the prompts held out to watch for overfitting.", 0.03)
    validation_rows: int = _flag("Most held-out answers per validation.", 60)
    validate_every: int = _flag("Steps between validations (0: never).", 500)
    save_every: int = _flag("Steps between checkpoints (0: only at the end).", 250)

    def __post_init__(self) -> None:
        if self.minutes <= 0 and self.steps <= 0 and self.epochs <= 0:
            raise ConfigError("--minutes, --steps and --epochs are all 0: give the run an end")
        for name in ("rows_per_step", "anchors", "target_top"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be 1 or more")

    @property
    def loss(self) -> LossWeights:
        return LossWeights(
            self.loss_cross_entropy, self.loss_total_variation, self.loss_confidence, self.position_decay
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


Settings = type[DraftSettings] | type[TrainSettings]


def add_flags(parser: argparse.ArgumentParser, settings: Settings) -> None:
    """One flag for each field; what is not given stays out of the namespace, so that a config file can fill it."""
    hints = get_type_hints(settings)
    for one in dataclasses.fields(settings):
        hint = hints[one.name]
        options: dict[str, Any] = {}
        if get_origin(hint) is tuple:
            hint, options = get_args(hint)[0], {"nargs": "+"}
        elif get_origin(hint) is Literal:
            hint, options = str, {"choices": get_args(hint)}
        shown = "" if one.default == () else f" Default: {one.default}."
        parser.add_argument(
            "--" + one.name.replace("_", "-"), type=hint, default=argparse.SUPPRESS,
            help=one.metadata["help"] + shown, **options,
        )  # fmt: skip


def given(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """The settings that were given as flags."""
    names = {one.name for one in dataclasses.fields(settings)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def checked(values: Mapping[str, Any], settings: Settings, where: str) -> dict[str, Any]:
    """A config file's section as keyword arguments.

    Raises:
        ConfigError: a name or a type that is not a setting's; `where` and the name are named.
    """
    hints = get_type_hints(settings)
    result = {}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(f"{where}: {name} is no setting; known are {', '.join(hints)}")
        hint = hints[name]
        expected: tuple[type, ...] = (hint,) if isinstance(hint, type) else (str,)
        if get_origin(hint) is tuple:
            if not isinstance(value, list) or not all(type(item) is int for item in value):
                raise ConfigError(f"{where}: {name} is {value!r}, expected a list of whole numbers")
            value = tuple(value)
        elif hint is float and type(value) is int:
            value = float(value)
        elif type(value) not in expected:
            raise ConfigError(f"{where}: {name} is {value!r}, expected {expected[0].__name__}")
        result[name] = value
    return result


def _check_choices(settings: DraftSettings) -> None:
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            choices = ", ".join(get_args(hint))
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(settings, name)!r}: choose one of {choices}")
