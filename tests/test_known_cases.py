"""docs/known_cases.md is complete: every situation has tests that name its number, or is listed as open with a reason.

A test names situations with `@pytest.mark.known_case(3, 17)`. The files are read, not imported, so that servers and
devices that are missing here hide nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent
DOCUMENT = TESTS.parent / "docs" / "known_cases.md"
NUMBERS = set(range(1, 27))


def marked() -> dict[int, set[str]]:
    """Tests of each number, as `folder/file.py::function` below tests/."""
    found = defaultdict(set)
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                for number in numbers_of(node):
                    found[number].add(f"{file.relative_to(TESTS)}::{node.name}")
    return dict(found)


def numbers_of(function: ast.FunctionDef) -> list[int]:
    calls = [d for d in function.decorator_list if isinstance(d, ast.Call)]
    marks = [c for c in calls if ast.unparse(c.func) == "pytest.mark.known_case"]
    return [ast.literal_eval(argument) for mark in marks for argument in mark.args]


def documented() -> tuple[set[int], dict[int, set[str]], dict[int, str]]:
    """Numbers of the situations, tests of each, reasons of the open ones, from the document's three tables."""
    situations, coverage, still_open = (
        dict(re.findall(r"^\| (\d+) \| (.+?) \|", section, re.M))
        for section in DOCUMENT.read_text().split("\n## ")[1:4]
    )
    tests = {int(n): set(re.findall(r"`([^`]+)`", cell)) for n, cell in coverage.items()}
    return {int(n) for n in situations}, tests, {int(n): reason for n, reason in still_open.items()}


def test_every_situation_is_described() -> None:
    assert documented()[0] == NUMBERS


def test_every_situation_has_tests_or_is_listed_as_open() -> None:
    _, _, still_open = documented()
    covered = set(marked())
    assert covered <= NUMBERS
    assert covered | set(still_open) == NUMBERS
    assert all(len(reason.split()) > 3 for reason in still_open.values())


def test_the_table_of_tests_is_what_the_tests_say() -> None:
    assert documented()[1] == marked()


def test_what_is_open_in_part_is_also_covered() -> None:
    """A number may be in both tables only if its reason says which part is missing."""
    _, tests, still_open = documented()
    for number in set(tests) & set(still_open):
        assert still_open[number].startswith("in part: ")
