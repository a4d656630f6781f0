"""How the tests are dealt out to the processes of `pytest -n`."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts engines runs in one process, one after the other: servers are shared, and each takes gigabytes."""
    for item in items:
        if item.get_closest_marker("e2e") or item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group("engines"))
