"""The short forms run by default, the long ones with `-m exact`; `--exactness-report` writes and prints what was found.

Several processes may run the tests (`-n`): each hands its findings to the one that reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The prover and the live tests are imported by their bare names, and so is the engine's process.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine")]

from exact_prover.report import Report  # noqa: E402

FINDINGS = pytest.StashKey[Report]()
HANDED_OVER = "exactness"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exactness-report", metavar="PATH", help="write what was found to this JSON file, and print it")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exact: the long forms of the exact prover and of the live tests (minutes)")
    config.stash[FINDINGS] = Report()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exact" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("exact")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[HANDED_OVER] = session.config.stash[FINDINGS].found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of `-n` has ended."""
    node.config.stash[FINDINGS].merge(getattr(node, "workeroutput", {}).get(HANDED_OVER, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.getoption("--exactness-report", default=None)
    if path:
        config.stash[FINDINGS].write(Path(path))
        terminalreporter.section("exactness")
        terminalreporter.write_line(config.stash[FINDINGS].table())


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Record one finding of the prover: `report(kind, setting, proof, verdict)`."""
    return pytestconfig.stash[FINDINGS].add


@pytest.fixture(scope="session")
def record_live(pytestconfig: pytest.Config) -> Callable[[list[dict[str, Any]], float], None]:
    """Record the table of the live tests and the seconds it took."""
    return pytestconfig.stash[FINDINGS].add_live
