"""Calibrated confidences: a slope and an offset on the logit of every c_k, chosen by what was measured (section 4).

Parameters are indexed by position, temperature band and coupling, because acceptance at T = 0, by p / q and by shared
noise are three different rules. A class that was not fitted keeps the draft's own confidences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.survival import IntArray

FORMAT = "dspark-calibration"
VERSION = 1


@dataclass(frozen=True)
class RequestClass:
    """Requests that share parameters: `low < temperature <= high`, or `temperature == 0` for greedy ones."""

    name: str
    low: float
    high: float
    coupled: bool


# The edges lie between the temperatures people ask for.
_BANDS = (("low", 0.0, 0.45), ("medium", 0.45, 0.85), ("high", 0.85, 1.25), ("hot", 1.25, math.inf))
_EDGES = np.array([0.0, *(high for _, _, high in _BANDS[:-1])])

# At T = 0 both couplings compare the same two argmaxes, so there is one greedy class.
CLASSES = (
    RequestClass("greedy", 0.0, 0.0, False),
    *(RequestClass(name, low, high, False) for name, low, high in _BANDS),
    *(RequestClass(f"{name}-coupled", low, high, True) for name, low, high in _BANDS),
)
_NUMBER = {kind.name: index for index, kind in enumerate(CLASSES)}


def class_index(temperature: npt.ArrayLike, coupled: npt.ArrayLike) -> IntArray:
    """Which of `CLASSES` each request belongs to.

    Args:
        temperature: `[R]`, 0 for greedy.
        coupled: `[R]` bool, whether draft and target pick with the same noise.

    Returns:
        `[R]` int64.
    """
    band = np.searchsorted(_EDGES, temperature)
    return band + len(_BANDS) * (np.asarray(coupled, dtype=bool) & (band > 0))


@dataclass(frozen=True)
class ClassParameters:
    """What was fitted for one class of requests.

    Attributes:
        name: of one of `CLASSES`.
        slope, offset: γ of each; `c'_k = σ(slope_k · logit(c_k) + offset_k)`, slopes positive.
        method: "temperature" (offsets 0), "slope-offset", or "none" where neither beat the raw confidences.
        temperatures: γ τ of the plain temperature fit, which SGLang's STS file can hold; `slope = 1 / τ` there.
        samples, requests: rounds of a request, and requests, behind the fit.
    """

    name: str
    slope: tuple[float, ...]
    offset: tuple[float, ...]
    method: str
    temperatures: tuple[float, ...]
    samples: int
    requests: int

    @property
    def kind(self) -> RequestClass:
        return CLASSES[_NUMBER[self.name]]

    def as_json(self) -> dict[str, Any]:
        kind = self.kind
        return {
            "class": self.name,
            "temperature": [kind.low, None if math.isinf(kind.high) else kind.high],
            "coupled": kind.coupled,
            "method": self.method,
            "slope": list(self.slope),
            "offset": list(self.offset),
            "temperatures": list(self.temperatures),
            "samples": self.samples,
            "requests": self.requests,
        }


@dataclass(frozen=True)
class Calibration:
    """The parameters of all fitted classes, what they were measured on, and how they did on held-out requests.

    Attributes:
        gamma: draft tokens a round.
        parameters: one entry a fitted class.
        identity: what was measured: models, device, engine and so on, as `Identity` writes it.
        passed: whether the gate was met on held-out data; None where nothing was held out, as in an imported file.
        report: the figures, for people; `docs/calibration.md` has its schema.
        source: where the figures come from: the command, or the imported file.
    """

    gamma: int
    parameters: tuple[ClassParameters, ...]
    identity: Mapping[str, Any]
    passed: bool | None
    report: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        slope = np.ones((len(CLASSES), self.gamma), dtype=np.float32)
        offset = np.zeros_like(slope)
        fitted = np.zeros(len(CLASSES), dtype=bool)
        for entry in self.parameters:
            number = _NUMBER[entry.name]
            slope[number], offset[number], fitted[number] = entry.slope, entry.offset, True
        for name, value in (("_slope", slope), ("_offset", offset), ("_fitted", fitted)):
            object.__setattr__(self, name, value)

    def apply(
        self, confidence: npt.NDArray[np.float32], temperature: npt.ArrayLike, coupled: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """Calibrated confidences. Row by row and position by position, so no policy sees later draws through it.

        A confidence that is not a number in [0, 1] comes out as NaN, which ends its survival.

        Args:
            confidence: `[R, γ]` float32, raw.
            temperature: `[R]`, 0 for greedy.
            coupled: `[R]` bool.

        Returns:
            `[R, γ]` float32; rows of a class that was not fitted are returned as they are.
        """
        index = class_index(temperature, coupled)
        known = self._fitted[index]  # type: ignore[attr-defined]
        if not known.any():
            return confidence
        with np.errstate(all="ignore"):  # 0, 1 and NaN take their course
            logit = np.log(confidence / (np.float32(1.0) - confidence))
            logit *= self._slope[index]  # type: ignore[attr-defined]
            logit += self._offset[index]  # type: ignore[attr-defined]
            np.negative(logit, out=logit)
            np.exp(logit, out=logit)
            logit += np.float32(1.0)
            calibrated = np.reciprocal(logit, out=logit)
        if known.all():
            return calibrated
        return np.where(known[:, None], calibrated, confidence)

    def of_class(self, name: str) -> ClassParameters | None:
        """What was fitted for a class, None where nothing was."""
        return next((entry for entry in self.parameters if entry.name == name), None)

    def save(self, path: str | Path) -> None:
        """Write the JSON file (schema: `docs/calibration.md`)."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "identity": dict(self.identity),
            "gamma": self.gamma,
            "passed": self.passed,
            "source": self.source,
            "parameters": [entry.as_json() for entry in self.parameters],
            "report": dict(self.report),
        }
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")  # a reader never sees half a file
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        partial.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote.

        Raises:
            ConfigError: the file is not there, not a calibration, or a field of it cannot be used.
        """
        document = read_object(path)
        if document.get("format") != FORMAT:
            raise ConfigError(
                f"{path}: field 'format' is {document.get('format')!r}, not {FORMAT!r}; make a calibration with "
                "python -m sglang_dspark calibrate"
            )
        if document.get("version") != VERSION:
            raise ConfigError(
                f"{path}: field 'version' is {document.get('version')!r}, this package reads {VERSION}; calibrate again"
            )
        gamma, identity, entries = (document.get(name) for name in ("gamma", "identity", "parameters"))
        if not isinstance(gamma, int) or not 1 <= gamma <= 255:
            raise ConfigError(f"{path}: field 'gamma' must be a whole number from 1 to 255, not {gamma!r}")
        if not isinstance(identity, dict) or not isinstance(entries, list):
            raise ConfigError(f"{path}: fields 'identity' and 'parameters' must be an object and a list")
        passed, report = document.get("passed"), document.get("report", {})
        if passed not in (True, False, None) or not isinstance(report, dict):
            raise ConfigError(f"{path}: fields 'passed' and 'report' must be true, false or null, and an object")
        parameters = [_parse(entry, gamma, f"{path}, parameters[{i}]") for i, entry in enumerate(entries)]
        names = [entry.name for entry in parameters]
        if len(set(names)) != len(names):
            raise ConfigError(f"{path}: field 'parameters' has a class twice: {', '.join(names)}")
        return cls(gamma, tuple(parameters), identity, passed, report, str(document.get("source", "")))


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    return document


def numbers(value: Any, count: int, where: str, *, positive: bool) -> tuple[float, ...]:
    """`value` as `count` finite numbers.

    Raises:
        ConfigError: it is something else; the message starts with `where`.
    """
    right = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count
    if right and all(isinstance(x, int | float) and math.isfinite(x) and (x > 0 or not positive) for x in value):
        return tuple(float(x) for x in value)
    raise ConfigError(
        f"{where} must be a list of {count} {'positive' if positive else 'finite'} numbers, not {value!r}"
    )


def _parse(entry: Any, gamma: int, where: str) -> ClassParameters:
    if not isinstance(entry, dict) or entry.get("class") not in _NUMBER:
        raise ConfigError(f"{where}: field 'class' must be one of {', '.join(_NUMBER)}")
    parsed = ClassParameters(
        entry["class"],
        numbers(entry.get("slope"), gamma, f"{where}: field 'slope'", positive=True),
        numbers(entry.get("offset"), gamma, f"{where}: field 'offset'", positive=False),
        str(entry.get("method", "")),
        numbers(entry.get("temperatures"), gamma, f"{where}: field 'temperatures'", positive=True),
        int(entry.get("samples", 0)),
        int(entry.get("requests", 0)),
    )
    written = parsed.as_json()
    for name in ("temperature", "coupled"):
        if entry.get(name) != written[name]:
            raise ConfigError(
                f"{where}: field {name!r} is {entry.get(name)!r}, but class {parsed.name} covers {written[name]!r}"
            )
    return parsed
