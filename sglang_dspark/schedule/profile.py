"""The profile file: a cost model with what it was measured on and how far it can be trusted (`docs/profiles.md`)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity
from sglang_dspark.schedule.cost import Curve, GraphSizes, Surface
from sglang_dspark.schedule.cost_fit import Fit

FORMAT = "dspark-profile"
VERSION = 1
# Median relative error at held-out points above which a model is not to be scheduled by.
MOST_HELD_OUT_ERROR = 0.05


@dataclass(frozen=True)
class MeasuredPoint:
    """One kind of round: how long it took, and what the model makes of it. Seconds.

    Attributes:
        requests, tokens, context, drafted: as in `cost_fit.Sample`; the context is the repeats' median.
        repeats: how often it was seen.
        seconds, lower_quartile, upper_quartile: of the repeats.
        fitted: of the model, with its 95 % interval `low` to `high`.
    """

    requests: int
    tokens: int
    context: float
    drafted: bool
    repeats: int
    seconds: float
    lower_quartile: float
    upper_quartile: float
    fitted: float
    low: float
    high: float


@dataclass(frozen=True)
class Profile:
    """A cost model as it lies in a file.

    Attributes:
        gamma: draft tokens a request.
        source: `measured`, `synthetic`, or the foreign format it was read from.
        drafted, undrafted, graphs: see `CostModel`.
        identity: what it was measured on; None for a foreign table, which is never chosen by itself.
        held_out_error: median relative error at points left out, the larger of the two kinds of round; None if unknown.
        points: what was measured.
        about: the machine, the command, the time and settings, for the reader.
    """

    gamma: int
    source: str
    drafted: Surface
    undrafted: Surface | None = None
    graphs: GraphSizes = field(default_factory=GraphSizes)
    identity: Identity | None = None
    held_out_error: float | None = None
    points: tuple[MeasuredPoint, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """At least two totals of verified tokens were measured, so that the cost of a token is known at all."""
        return len(self.drafted.tokens.probes) >= 2

    @property
    def trouble(self) -> str | None:
        """Why nothing may be scheduled by it, None if it may."""
        if not self.calibrated:
            return "uncalibrated: a single probe does not tell what another verified token costs; run `profile`"
        error = self.held_out_error
        if self.source == "measured" and error is None:
            return "too few points were measured to check it on points left out; run `profile` for longer"
        if error is not None and not error <= MOST_HELD_OUT_ERROR:
            return f"not to be trusted: median held-out error {error:.1%}, more than {MOST_HELD_OUT_ERROR:.0%}"
        return None

    @property
    def trusted(self) -> bool:
        return self.trouble is None

    @classmethod
    def from_fits(
        cls,
        drafted: Fit,
        undrafted: Fit | None,
        *,
        gamma: int,
        identity: Identity | None,
        graphs: GraphSizes | None = None,
        source: str = "measured",
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """Put fits of both kinds of round together."""
        fits = [(True, drafted)] + ([(False, undrafted)] if undrafted else [])
        # A handful of undrafted points may be too few to leave any out.
        errors = [f.held_out_error for kind, f in fits if kind or f.held_out_error is not None]
        return cls(
            gamma=gamma,
            source=source,
            drafted=drafted.surface,
            undrafted=undrafted.surface if undrafted else None,
            graphs=graphs or GraphSizes(),
            identity=identity,
            held_out_error=None if None in errors else max(e for e in errors if e is not None),
            points=tuple(point for kind, fit in fits for point in _points(fit, kind)),
            about=about or {},
        )

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(dumps(self), encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path | str) -> Profile:
        """Read a profile, or one of SGLang's two tables.

        Raises:
            ConfigError: names the file and the field.
        """
        from sglang_dspark.schedule import sglang_tables

        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"profile {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"profile {path}: not valid JSON: {error}") from error
        try:
            if isinstance(data, dict) and sglang_tables.recognises(data):
                return sglang_tables.read(data)
            return parse(data)
        except ConfigError as error:
            raise ConfigError(f"profile {path}: {error}") from error


def dumps(profile: Profile) -> str:
    """The file's text: one line for every point."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "source": profile.source,
        "gamma": profile.gamma,
        "identity": profile.identity.as_dict() if profile.identity else None,
        "held_out_error": profile.held_out_error,
        "trusted": profile.trusted,
        "trouble": profile.trouble,
        "graphs": dataclasses.asdict(profile.graphs),
        "drafted": dataclasses.asdict(profile.drafted),
        "undrafted": dataclasses.asdict(profile.undrafted) if profile.undrafted else None,
        "about": dict(profile.about),
    }
    points = ",\n  ".join(json.dumps(_rounded(dataclasses.asdict(p))) for p in profile.points)
    text = json.dumps(_rounded(head), indent=1, allow_nan=False)
    return text.removesuffix("\n}") + f',\n "points": [\n  {points}\n ]\n}}\n'


def parse(data: Any) -> Profile:
    """The profile in a file's JSON.

    Raises:
        ConfigError: names the field.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f'format: expected "{FORMAT}"; this is no profile')
    if data.get("version") != VERSION:
        raise ConfigError(f"version: expected {VERSION}, got {data.get('version')!r}; measure again with `profile`")
    gamma, error, source = data.get("gamma"), data.get("held_out_error"), data.get("source")
    if type(gamma) is not int or gamma < 1:
        raise ConfigError(f"gamma: expected a count, got {gamma!r}")
    if error is not None and not (isinstance(error, int | float) and math.isfinite(error) and error >= 0):
        raise ConfigError(f"held_out_error: expected a share or null, got {error!r}")
    if not isinstance(source, str):
        raise ConfigError(f"source: expected a word, got {source!r}")
    identity, undrafted = data.get("identity"), data.get("undrafted")
    try:
        graphs = GraphSizes(**{name: tuple(sizes) for name, sizes in (data.get("graphs") or {}).items()})
        points = tuple(MeasuredPoint(**point) for point in data.get("points") or [])
    except (TypeError, AttributeError) as cause:
        raise ConfigError(f"graphs or points: {cause}") from cause
    return Profile(
        gamma=gamma,
        source=source,
        drafted=surface(data.get("drafted"), "drafted"),
        undrafted=None if undrafted is None else surface(undrafted, "undrafted"),
        graphs=graphs,
        identity=None if identity is None else Identity.from_dict(identity),
        held_out_error=error,
        points=points,
        about=data.get("about") or {},
    )


def surface(data: Any, where: str) -> Surface:
    """A `Surface` from its JSON; errors name the field below `where`."""
    try:
        curves = {name: Curve(tuple(data[name]["probes"]), tuple(data[name]["seconds"])) for name in _CURVES}
        return Surface(**{**data, **curves})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{where}: missing, unknown or mistyped field {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


_CURVES = ("requests", "tokens")


def _points(fit: Fit, drafted: bool) -> list[MeasuredPoint]:
    return [
        MeasuredPoint(
            requests=point.requests,
            tokens=point.tokens,
            context=point.context,
            drafted=drafted,
            repeats=len(point.seconds),
            seconds=point.median,
            lower_quartile=float(np.percentile(point.seconds, 25)),
            upper_quartile=float(np.percentile(point.seconds, 75)),
            fitted=float(fit.fitted[i]),
            low=float(fit.low[i]),
            high=float(fit.high[i]),
        )
        for i, point in enumerate(fit.points)
    ]


def _rounded(value: Any) -> Any:
    """Seven significant digits are more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
