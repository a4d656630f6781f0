"""DSpark's own settings: one frozen object, its command-line flags, and how it reaches the engine's processes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from sglang_dspark.errors import ConfigError

# The engine spawns its scheduler processes itself and offers a plugin no argument to pass on; the environment is the
# one channel that reaches every rank.
ENVIRONMENT_VARIABLE = "SGLANG_DSPARK_CONFIG"

Switch = Literal["on", "off"]
PolicyName = Literal["fixed", "threshold"]
Coupling = Literal["rejection", "gumbel"]
CpuCode = Literal["fast", "stock"]
Overlap = Literal["auto", "on", "off"]


def _flag(help_text: str, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class DSparkConfig:
    """Settings of one server. Field `a_b` is the flag `--dspark-a-b`."""

    plugin: Switch = _flag("on: this project's decoding round. off: the stock engine, for comparison.", "on")
    policy: PolicyName = _flag(
        "How many draft tokens of a request are verified. fixed: the same number for every request and round. "
        "threshold: up to the first position whose survival is below --dspark-survival-threshold.",
        "fixed",
    )
    verify_length: int | None = _flag("Draft tokens verified per request by the fixed policy (default: gamma).", None)
    survival_threshold: float = _flag("Survival below which the threshold policy stops verifying.", 0.3)
    coupling: Coupling = _flag(
        "How sampled requests accept. rejection: by p / q. gumbel: draft and target pick with the same noise, so that "
        "the text of a seed is the same with any draft, policy or batch. Requests with their own seed always use it.",
        "rejection",
    )
    support: int = _flag(
        "Candidates the draft chooses from at each position, the best by its base logits. 0: the whole vocabulary.",
        0,
    )
    cpu_attention: CpuCode = _flag("Attention on a CPU. fast: this project's. stock: the engine's own.", "fast")
    cpu_layers: CpuCode = _flag(
        "Norms, rotary embedding and products on a CPU. fast: compiled, with packed weights. stock: the engine's own.",
        "fast",
    )
    overlap: Overlap = _flag("Overlapped scheduling. auto: off on a CPU, elsewhere as the engine decides.", "auto")
    report_dir: str | None = _flag("Folder in which every rank reports that the plugin is active (set by serve).", None)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in ("plugin", "policy", "coupling", "cpu_attention", "cpu_layers", "overlap"):
            value, choices = getattr(self, name), get_args(hints[name])
            if value not in choices:
                raise ConfigError(f"{flag_of(name)} {value!r}: choose one of {', '.join(choices)}")
        if self.verify_length is not None:
            if self.verify_length < 0:
                raise ConfigError(f"--dspark-verify-length {self.verify_length}: must be 0 or more")
            if self.policy != "fixed":
                raise ConfigError(f"--dspark-verify-length is read by --dspark-policy fixed only, not {self.policy}")
        if self.support < 0:
            raise ConfigError(f"--dspark-support {self.support}: must be 0 or more")
        if not 0.0 <= self.survival_threshold <= 1.0:
            raise ConfigError(f"--dspark-survival-threshold {self.survival_threshold}: must lie in [0, 1]")

    def check_gamma(self, gamma: int) -> None:
        """Reject what only the draft's block size shows to be impossible.

        Raises:
            ConfigError: `verify_length` is larger than `gamma`.
        """
        if self.verify_length is not None and self.verify_length > gamma:
            raise ConfigError(
                f"--dspark-verify-length {self.verify_length}: the draft proposes gamma={gamma} tokens a round; "
                f"use at most {gamma}"
            )

    def to_environment(self) -> None:
        """Publish the settings to processes started from this one."""
        os.environ[ENVIRONMENT_VARIABLE] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environment(cls) -> DSparkConfig:
        """Read what `to_environment` published; the defaults where nothing was.

        Raises:
            ConfigError: the variable does not hold these settings.
        """
        text = os.environ.get(ENVIRONMENT_VARIABLE)
        if not text:
            return cls()
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"environment variable {ENVIRONMENT_VARIABLE}: {error}") from error


def flag_of(field: str) -> str:
    return "--dspark-" + field.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a `--dspark-…` flag for every user-facing field of `DSparkConfig`."""
    hints = get_type_hints(DSparkConfig)
    for field in dataclasses.fields(DSparkConfig):
        if field.name == "report_dir":
            continue
        choices = [c for c in get_args(hints[field.name]) if isinstance(c, str)] or None
        kind = str if choices else (int if "int" in str(hints[field.name]) else float)
        default = "gamma" if field.default is None else field.default
        parser.add_argument(
            flag_of(field.name),
            dest=f"dspark_{field.name}",
            type=kind,
            choices=choices,
            default=field.default,
            help=f"{field.metadata['help']} Default: {default}.",
        )


def from_flags(arguments: argparse.Namespace) -> DSparkConfig:
    """Build the settings from parsed flags.

    Raises:
        ConfigError: a value or a combination cannot work; the message names the flag.
    """
    names = [f.name for f in dataclasses.fields(DSparkConfig) if hasattr(arguments, f"dspark_{f.name}")]
    return DSparkConfig(**{name: getattr(arguments, f"dspark_{name}") for name in names})
