"""The short forms run by default, the long ones with `-m exact`; `--exactness-report` writes what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The prover and the live tests are imported by their bare names, and so is the engine's process.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine")]

from exact_prover.report import Report  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exactness-report", metavar="PATH", help="write what the exact prover found to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exact: the long forms of the exact prover and of the live tests (minutes)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exact" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("exact")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> Iterator[Report]:
    """What was found; written at the end of the session."""
    path = request.config.getoption("--exactness-report", default=None)
    collected = Report()
    yield collected
    if path:
        collected.write(Path(path))


@pytest.fixture(scope="session")
def report(findings: Report) -> Callable[..., Any]:
    """Record one finding of the prover: `report(kind, setting, proof, verdict)`."""
    return findings.add


@pytest.fixture(scope="session")
def record_live(findings: Report) -> Callable[[list[dict[str, Any]], float], None]:
    """Record the table of the live tests and the seconds it took."""
    return findings.add_live
