"""Where profiles live: those that `profile` installed for this user, then those shipped with the package."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from sglang_dspark.errors import ConfigError
from sglang_dspark.identity import Identity
from sglang_dspark.model.demo_target import default_cache_dir
from sglang_dspark.schedule.profile import FORMAT, Profile


def installed_dir() -> Path:
    """Where `profile` and `calibrate` install what they measured."""
    return default_cache_dir() / "profiles"


def shipped_dir() -> Path:
    """The repository's `profiles/`: inside the package once that is installed, beside it in a clone."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "data" / "profiles"
    return packed if packed.is_dir() else package.parent / "profiles"


def file_name(model_name: str, identity: Identity) -> str:
    """One file an identity, so that a new measurement takes the place of the old one."""
    digest = hashlib.sha256(json.dumps(identity.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
    words = f"{Path(model_name).name} {identity.device}"
    return f"{re.sub('[^a-z0-9]+', '-', words.lower()).strip('-')}-{digest}.json"


def find_profile(identity: Identity, folders: list[Path] | None = None) -> tuple[Path | None, list[str]]:
    """The profile to serve with.

    Args:
        identity: of the server.
        folders: searched in this order; what the user installed comes before what is shipped.

    Returns:
        The path of the first trusted profile of exactly this identity, or None; and for every other profile on the way
        one line that says why it is not used.
    """
    reasons: list[str] = []
    for folder in folders if folders is not None else [installed_dir(), shipped_dir()]:
        for path in sorted(folder.glob("*.json")):
            reason = _reason_against(path, identity)
            if reason is None:
                return path, reasons
            if reason:
                reasons.append(f"{path}: {reason}")
    return None, reasons or [f"no profile in {installed_dir()} or {shipped_dir()}; measure one with `profile`"]


def _reason_against(path: Path, identity: Identity) -> str | None:
    """None if the profile may be used, empty if the file is no profile (the folders hold calibrations too)."""
    try:
        text = path.read_text(encoding="utf-8")
        if f'"{FORMAT}"' not in text[:200]:
            return ""
        profile = Profile.load(path)
    except (OSError, ConfigError) as error:
        return str(error)
    if profile.identity is None:
        return "it does not say what it was measured on"
    if differences := profile.identity.differences(identity):
        return "measured on something else (there is this server): " + "; ".join(differences)
    return profile.trouble
