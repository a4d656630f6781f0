"""Training configurations: TOML files with the sections [draft] and [train], typed by `train/settings.py`.

`--config qwen3-4b` names a file here, `--config path.toml` any other. Flags win over the file, the file over defaults.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from sglang_dspark.errors import ConfigError
from sglang_dspark.train.settings import DraftSettings, TrainSettings, checked


def shipped() -> list[str]:
    """Names of the configurations that come with the package."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_config(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the draft and of the training that a configuration gives.

    Raises:
        ConfigError: there is none of that name, or a line of it is no setting; file and setting are named.
    """
    source = Path(name) if name.endswith(".toml") else resources.files(__name__) / f"{name}.toml"
    if not source.is_file():
        known = ", ".join(shipped())
        raise ConfigError(f"--config {name}: no such file, nor one of the package's own: {known}")
    try:
        sections = tomllib.loads(source.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {name}: not TOML ({error})") from error
    unknown = set(sections) - {"draft", "train"}
    if unknown:
        raise ConfigError(f"--config {name}: section {sorted(unknown)[0]} is unknown; use [draft] and [train]")
    return (
        checked(sections.get("draft", {}), DraftSettings, f"--config {name}, [draft]"),
        checked(sections.get("train", {}), TrainSettings, f"--config {name}, [train]"),
    )
