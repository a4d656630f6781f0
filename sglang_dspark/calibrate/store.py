"""Which calibration fits a server: those that `calibrate` installed for this user, then those shipped."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity
from sglang_dspark.profile.store import file_name, installed_dir, shipped_dir
from sglang_dspark.schedule.calibration import Calibration

SUFFIX = ".calibration.json"
# What a confidence and its acceptance depend on. A calibration is not about time: it holds on other machines, too.
FIELDS = ("target", "draft", "dtype", "gamma", "support")


def installed_path(model_name: str, identity: Identity) -> Path:
    """Where `calibrate` installs what it measured."""
    return installed_dir() / (file_name(model_name, identity).removesuffix(".json") + SUFFIX)


def find_calibration(
    identity: Identity, folders: list[Path] | None = None, *, accept_failed: bool = False
) -> tuple[Path | None, list[str]]:
    """The calibration to serve with.

    Args:
        identity: of the server.
        folders: searched in this order; what the user installed comes before what is shipped.
        accept_failed: also take one that did not pass on held-out data.

    Returns:
        The path of the first that fits, or None; and for every other one on the way a line that says why not.
    """
    reasons: list[str] = []
    for folder in folders if folders is not None else [installed_dir(), shipped_dir()]:
        for path in sorted(folder.glob("*" + SUFFIX)):
            try:
                reason = reason_against(Calibration.load(path), identity, accept_failed=accept_failed)
            except ConfigError as error:
                reasons.append(str(error))
                continue
            if reason is None:
                return path, reasons
            reasons.append(f"{path}: {reason}")
    return None, reasons or ["no calibration was found; make one with python -m sglang_dspark calibrate"]


def reason_against(calibration: Calibration, identity: Identity, *, accept_failed: bool = False) -> str | None:
    """Why a server should not use a calibration; None if it may.

    A file without an identity, such as an imported one, was named by the user: it is held to γ alone.
    """
    if calibration.gamma != identity.gamma:
        return f"made for gamma {calibration.gamma}, the draft here proposes {identity.gamma}"
    if calibration.identity:
        here = identity.as_dict()
        differing = [name for name in FIELDS if calibration.identity.get(name) != here[name]]
        if differing:
            clauses = (f"{name}: {calibration.identity.get(name)} there, {here[name]} here" for name in differing)
            return "measured on something else: " + "; ".join(clauses)
    if calibration.passed is False and not accept_failed:
        failures = calibration.report.get("gate", {}).get("failures", ["no reason is given"])
        return f"it did not pass on held-out data ({failures[0]})"
    return None
