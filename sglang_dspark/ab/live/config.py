"""The file that describes a split: two fleets, the ramp, the guardrails, the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml

from sglang_dspark.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Fleet:
    """One way to serve.

    Attributes:
        name: in the audit and the response header `X-Arm`.
        workers: `http://HOST:PORT` of its servers, or of a router in front of them.
        metrics: where Prometheus metrics are read; the workers by default.
    """

    name: str
    workers: tuple[str, ...]
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Of the ramp: the candidate's share of the users, and how long it must hold before the next."""

    percent: float
    minutes: float


@dataclass(frozen=True)
class Guardrails:
    """Limits on the candidate, each over `window_seconds`; the first that is crossed takes its weight away.

    Attributes:
        error_rate: by which its share of failed requests may exceed the control's.
        ttft_p99_seconds, ttft_p99_ratio: its p99 time to the first token, absolute and against the control's; both must
            be exceeded.
        accept_length: below this the draft no longer fits the traffic. 0: not checked.
        stalled_seconds: with requests in flight and not one byte of an answer.
        min_requests: fewer say nothing about rates.
    """

    error_rate: float = 0.02
    ttft_p99_seconds: float = 2.0
    ttft_p99_ratio: float = 2.0
    accept_length: float = 1.05
    stalled_seconds: float = 5.0
    min_requests: int = 20
    window_seconds: float = 60.0


@dataclass(frozen=True)
class SpeedTest:
    """The sequential test on the time between tokens.

    Attributes:
        interval_seconds: both fleets' means over so long are one pair.
        min_pairs: before anything is claimed.
        alpha: chance of ever claiming a difference where there is none, however often one looks.
    """

    interval_seconds: float = 10.0
    min_pairs: int = 50
    alpha: float = 0.05


@dataclass(frozen=True)
class Split:
    """Everything.

    Attributes:
        control, candidate: the fleets.
        listen: `HOST:PORT` that users connect to.
        user_key: header with what must always see the same fleet; the client's address where it is missing.
        salt: another number draws other users.
        health_path: of the workers; must fail when they cannot generate.
        ramp, guardrails, test: see there.
        audit: file of decisions, appended to.
        response_seconds: without a byte from a worker for so long, a request has failed.
    """

    control: Fleet
    candidate: Fleet
    listen: str = "127.0.0.1:8080"
    user_key: str = "X-User-Id"
    salt: int = 1
    health_path: str = "/health"
    ramp: tuple[Step, ...] = (Step(1, 30), Step(5, 60), Step(20, 120), Step(50, 240))
    guardrails: Guardrails = field(default_factory=Guardrails)
    test: SpeedTest = field(default_factory=SpeedTest)
    audit: Path = Path("ab-live-audit.jsonl")
    response_seconds: float = 120.0


def read_split(path: Path) -> Split:
    """Read the YAML file; its fields are those of `Split`.

    Raises:
        ConfigError: file and field are named.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: must hold fields such as control and candidate")
    given = dict(content)
    for name in ("control", "candidate"):
        if name not in given:
            raise ConfigError(f"--config {path}: {name} is missing")
        given[name] = _fleet(given[name], f"--config {path}, {name}", name)
    if "ramp" in given:
        given["ramp"] = _ramp(given["ramp"], f"--config {path}, ramp")
    for name, kind in (("guardrails", Guardrails), ("test", SpeedTest)):
        if name in given:
            given[name] = _fill(kind, given[name], f"--config {path}, {name}")
    if "audit" in given:
        given["audit"] = Path(str(given["audit"]))
    split = _fill(Split, given, f"--config {path}")
    _check(split, f"--config {path}")
    return split


def _fill(kind: type[T], values: Any, where: str) -> T:
    names = {entry.name for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a mapping of {', '.join(sorted(names))}")
    if unknown := set(values) - names:
        raise ConfigError(f"{where}: unknown field {min(unknown)!r}; there are {', '.join(sorted(names))}")
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = values.get(entry.name)
        if (
            entry.type in ("float", "int")
            and value is not None
            and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0)
        ):
            raise ConfigError(f"{where}, {entry.name}: must be a number of 0 or more, not {value!r}")
    return kind(**values)


def _fleet(values: Any, where: str, name: str) -> Fleet:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a mapping with workers")
    lists = {key: _urls(values.get(key, ()), f"{where}, {key}") for key in ("workers", "metrics")}
    if not lists["workers"]:
        raise ConfigError(f"{where}, workers: needs at least one http://HOST:PORT")
    return _fill(Fleet, {"name": name, **values, **lists}, where)


def _urls(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f"{where}: must be a list of http://HOST:PORT")
    for value in values:
        parts = urlsplit(str(value))
        if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path not in ("", "/"):
            raise ConfigError(f"{where}: {value!r} is not http://HOST:PORT")
    return tuple(str(value).rstrip("/") for value in values)


def _ramp(values: Any, where: str) -> tuple[Step, ...]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: must be a list of percent and minutes")
    steps = tuple(_fill(Step, value, f"{where}, step {number}") for number, value in enumerate(values, start=1))
    percents = [step.percent for step in steps]
    if percents != sorted(percents) or percents[-1] > 100:
        raise ConfigError(f"{where}: percents must rise and end at 100 or below")
    return steps


def _check(split: Split, where: str) -> None:
    if split.control.name == split.candidate.name:
        raise ConfigError(f"{where}: control and candidate are both called {split.control.name!r}")
    host, _, port = split.listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{where}, listen: must be HOST:PORT, not {split.listen!r}")
    for name in ("user_key", "health_path"):
        if any(letter.isspace() or letter in "\"'\\{}#" for letter in getattr(split, name)):
            raise ConfigError(f"{where}, {name}: {getattr(split, name)!r} has letters that cannot stand there")
