"""The short form runs by default, the long one with `-m exact`; `--exactness-report` writes what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The prover is imported by its bare name.
sys.path.insert(0, str(Path(__file__).parent))

from exact_prover.report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exactness-report", metavar="PATH", help="write what the exact prover found to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exact: the long form of the exact prover (minutes)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exact" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("exact")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Record one finding: `report(kind, setting, proof, verdict)`."""
    path = request.config.getoption("--exactness-report", default=None)
    findings = Report()
    yield findings.add
    if path:
        findings.write(Path(path))
