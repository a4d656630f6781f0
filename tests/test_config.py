"""Settings: what cannot work is rejected with the flag's name, and they survive the trip to another process."""

from __future__ import annotations

import argparse
import os

import pytest

from sglang_dspark.config import ENVIRONMENT_VARIABLE, DSparkConfig, add_flags, from_flags
from sglang_dspark.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"verify_length": -1}, "--dspark-verify-length"),
        ({"verify_length": 2, "policy": "threshold"}, "--dspark-verify-length"),
        ({"survival_threshold": 1.5}, "--dspark-survival-threshold"),
        ({"policy": "greedy"}, "--dspark-policy"),
        ({"plugin": "maybe"}, "--dspark-plugin"),
    ],
)
def test_impossible_settings_name_their_flag(values: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        DSparkConfig(**values)  # type: ignore[arg-type]


def test_verify_length_beyond_gamma_is_rejected() -> None:
    with pytest.raises(ConfigError, match="gamma=5"):
        DSparkConfig(verify_length=6).check_gamma(5)


def test_flags_and_environment_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    settings = from_flags(parser.parse_args(["--dspark-policy", "threshold", "--dspark-survival-threshold", "0.5"]))
    assert settings == DSparkConfig(policy="threshold", survival_threshold=0.5)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert DSparkConfig.from_environment() == DSparkConfig()
    settings.to_environment()
    assert ENVIRONMENT_VARIABLE in os.environ
    assert DSparkConfig.from_environment() == settings


@pytest.mark.parametrize("text", ["{", '{"no_such_field": 1}', "[1]"])
def test_a_broken_environment_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, text)
    with pytest.raises(ConfigError, match=ENVIRONMENT_VARIABLE):
        DSparkConfig.from_environment()
