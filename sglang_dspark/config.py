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
PolicyName = Literal["auto", "causal", "lagged", "threshold", "fixed", "sweep"]
WithoutCosts = Literal["threshold", "fixed", "sweep"]
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
        "How many draft tokens are verified. auto: by measured costs and calibrated confidences, lagged under "
        "overlapped scheduling and causal else. causal: as long as this round's confidences pay. lagged: a budget "
        "set by those of two rounds ago. threshold: up to the first position whose survival is below --dspark- "
        "survival-threshold. fixed: the same number for every request and round; also what runs where auto, causal "
        "or lagged find no cost table. sweep: every amount in turn, to measure what each costs (used by profile).",
        "auto",
    )
    profile: str = _flag("Cost table: a file, none, or auto: the installed one that fits this server.", "auto")
    calibration: str = _flag("Calibration: a file, none, or auto: the installed one that fits this server.", "auto")
    accept_failed_calibration: Switch = _flag("on: use a calibration that missed its gate.", "off")
    objective: str = _flag(
        "What auto, causal and lagged maximise. throughput: tokens a second. latency: those of the slowest request. "
        "slo:RATE: throughput, as long as every request keeps RATE tokens a second if some way of serving does.",
        "throughput",
    )
    min_gain: float = _flag("Gain over drafting nothing that drafting must promise, as a fraction.", 0.02)
    explore: float = _flag("Part of the rounds that verify everything, to keep calibration measurable.", 0.01)
    verify_length: int | None = _flag("Draft tokens verified per request by the fixed policy (default: gamma).", None)
    survival_threshold: float = _flag("Survival below which the threshold policy stops verifying.", 0.3)
    coupling: Coupling = _flag(
        "How sampled requests accept. rejection: by p / q. gumbel: draft and target pick with the same noise, so that "
        "the text of a seed is the same with any draft, policy or batch. Requests with their own seed always use it.",
        "rejection",
    )
    support: int = _flag(
        "Candidates the draft chooses from at each position, the best by its base logits. 0: the whole vocabulary.",
        256,
    )
    cpu_attention: CpuCode = _flag("Attention on a CPU. fast: this project's. stock: the engine's own.", "fast")
    cpu_layers: CpuCode = _flag(
        "Norms, rotary embedding and products on a CPU. fast: compiled, with packed weights. stock: the engine's own.",
        "fast",
    )
    overlap: Overlap = _flag("Overlapped scheduling. auto: off on a CPU, elsewhere as the engine decides.", "auto")
    record: str | None = _flag("Folder for records of every round: lengths, times, confidences, acceptance.", None)
    record_limit_mib: float = _flag("Disk that the records of one rank may take; the oldest go first.", 256.0)
    report_dir: str | None = _flag("Folder in which every rank reports that the plugin is active (set by serve).", None)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        choose = ("plugin", "policy", "coupling", "cpu_attention", "cpu_layers", "overlap", "accept_failed_calibration")
        for name in choose:
            value, choices = getattr(self, name), get_args(hints[name])
            if value not in choices:
                raise ConfigError(f"{flag_of(name)} {value!r}: choose one of {', '.join(choices)}")
        if self.verify_length is not None:
            if self.verify_length < 0:
                raise ConfigError(f"--dspark-verify-length {self.verify_length}: must be 0 or more")
            if self.policy not in ("fixed", "auto"):
                raise ConfigError(f"--dspark-verify-length is read by --dspark-policy fixed only, not {self.policy}")
        self.parsed_objective()
        if not 0.0 <= self.min_gain < 1.0:
            raise ConfigError(f"--dspark-min-gain {self.min_gain}: must lie in [0, 1)")
        if not 0.0 <= self.explore <= 1.0:
            raise ConfigError(f"--dspark-explore {self.explore}: must lie in [0, 1]")
        if self.support < 0:
            raise ConfigError(f"--dspark-support {self.support}: must be 0 or more")
        if not self.record_limit_mib >= 1.0:
            raise ConfigError(f"--dspark-record-limit-mib {self.record_limit_mib}: must be at least 1")
        if not 0.0 <= self.survival_threshold <= 1.0:
            raise ConfigError(f"--dspark-survival-threshold {self.survival_threshold}: must lie in [0, 1]")

    @property
    def policy_without_costs(self) -> WithoutCosts:
        """What runs where there is no cost table to go by."""
        return self.policy if self.policy in ("threshold", "sweep") else "fixed"

    def parsed_objective(self) -> tuple[Literal["throughput", "latency", "slo"], float]:
        """Kind, and for `slo` the tokens a second of each request.

        Raises:
            ConfigError: `objective` is none of the forms.
        """
        kind, _, rate = self.objective.partition(":")
        if kind in ("throughput", "latency") and not rate:
            return kind, 0.0  # type: ignore[return-value]
        try:
            if kind == "slo" and float(rate) > 0:
                return "slo", float(rate)
        except ValueError:
            pass  # said below
        raise ConfigError(f"--dspark-objective {self.objective!r}: give throughput, latency, or slo:TOKENS_A_SECOND")

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
        kinds = [k for k in (get_args(hints[field.name]) or (hints[field.name],)) if k in (str, int, float)]
        kind = str if choices else kinds[0]
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
