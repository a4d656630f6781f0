"""Settings of a training run. Each field is the flag of the same name."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.loss import LossWeights


def _flag(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TrainSettings:
    seed: int = _flag("Seed of everything random in the run.", 0)
    minutes: float = _flag("Training time; the learning rate falls to zero over it. 0: no limit.", 60.0)
    steps: int = _flag("Steps to train for; reproducible to the bit. 0: no limit.", 0)
    rows_per_step: int = _flag("Answers in a step.", 8)
    anchors: int = _flag("Blocks drawn from each answer in a step.", 32)
    rows_per_domain: int = _flag("Most answers of each domain (0: all), for when computing features is the limit.", 0)
    domain_balance: float = _flag("0: blocks in proportion to answers; 1: as many blocks from each domain.", 0.5)
    learning_rate: float = _flag("Peak learning rate of the backbone.", 6e-4)
    markov_learning_rate: float = _flag("Peak learning rate of the Markov head.", 2e-3)
    final_learning_rate: float = _flag("Learning rate at the end, as a share of the peak.", 0.02)
    warmup_steps: int = _flag("Steps over which the learning rate rises.", 100)
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
        if self.minutes <= 0 and self.steps <= 0:
            raise ConfigError("--minutes and --steps are both 0: give the run an end")
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
