"""SGLang's own calibration file (`--speculative-dspark-confidence-sts-path`): one τ a position, for all requests."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.calibration import CLASSES, Calibration, ClassParameters, numbers, read_object


def import_sts(path: str | Path, gamma: int) -> Calibration:
    """A calibration that applies the file's temperatures to every class of requests.

    It carries no identity and has not passed anything: the file does not say what it was measured on, nor for which
    temperature.

    Raises:
        ConfigError: the file cannot be read, or was fitted for another γ.
    """
    document = read_object(path)
    temperatures = numbers(document.get("temperatures"), gamma, f"{path}: field 'temperatures'", positive=True)
    samples = int(document.get("num_samples") or 0)
    slopes, none = tuple(1.0 / tau for tau in temperatures), (0.0,) * gamma
    parameters = tuple(
        ClassParameters(kind.name, slopes, none, "temperature", temperatures, samples, 0) for kind in CLASSES
    )
    report = {"sts": {name: document.get(name) for name in ("dataset", "ece_before", "ece_after")}}
    return Calibration(gamma, parameters, {}, None, report, f"imported from {Path(path).name}")


def export_sts(calibration: Calibration, path: str | Path, class_name: str = "greedy") -> None:
    """Write the plain temperatures of one class, which is all the engine's file can hold.

    `ece_before` and `ece_after` are of the held-out requests, with these temperatures (not with the slopes and offsets
    that may have been chosen over them).

    Raises:
        ConfigError: that class was not fitted.
    """
    entry = calibration.of_class(class_name)
    if entry is None:
        fitted = ", ".join(e.name for e in calibration.parameters) or "none"
        raise ConfigError(f"class {class_name!r} is not in this calibration (fitted: {fitted})")
    figures = calibration.report.get("temperature_only", {}).get(class_name, {})
    document = {
        "temperatures": list(entry.temperatures),
        "dataset": str(calibration.report.get("prompts", "")),
        "num_samples": entry.samples,
        "ece_before": list(figures.get("ece_before", [])),
        "ece_after": list(figures.get("ece_after", [])),
    }
    Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")
