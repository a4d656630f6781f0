"""The reports: what they say, that they agree, and that the page works in a browser without a network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ab_fakes import cells, chosen, results

from sglang_dspark.ab.report import write_reports
from sglang_dspark.ab.results import Question, question_for, schema

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARMS = {"plain": 20.0, "mtp-1": 24.0, "dspark": 31.0}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    measured = cells(ARMS, temperatures=(0.0, 1.0), accept={"mtp-1": 2, "dspark": 3}, noise=0.01)
    arms = [*(chosen(name) for name in ARMS), chosen("eagle3", not_run="no draft of this kind is here")]
    return results(
        measured, tmp_path_factory.mktemp("store"), arms, temperatures=(0.0, 1.0), question=Question("dspark", "mtp-1"),
        notes={
            "layout": "side-by-side", "starts": {name: [3.0] for name in ARMS},
            "plan": {"requests": {"poisson:1:T0": 3}, "cell_seconds": 4.0, "repetitions": 5, "seconds": 60.0},
            "about": {name: {"memory_gib": 1.5, "flags": f"--x {name}"} for name in ARMS},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(found: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report")
    assert [path.name for path in write_reports(found, made)] == ["results.json", "report.md", "report.html"]
    return made


def test_the_results_follow_their_schema(found: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(found, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "surprise": 1}, schema())


def test_the_verdict_comes_first_and_is_the_ratio_at_equal_user_speed(found: dict[str, Any], folder: Path) -> None:
    headline = found["verdict"]["headline"]
    assert re.match(r"T = 1: At [\d.]+ tok/s per user, dspark has .*x the throughput of mtp-1", headline)
    assert found["verdict"]["conclusive"]
    text = (folder / "report.md").read_text()
    assert text.index(headline) < text.index("### Along the frontier") < text.index("### All loads")
    assert "eagle3 (not run): no draft of this kind is here" in text
    page = (folder / "report.html").read_text()
    assert page.index(headline.split(",")[0]) < page.index('id="frontier-title"')


def test_out_of_reach_and_frontier_claims_are_in_the_verdict(found: dict[str, Any]) -> None:
    said = " ".join(found["verdict"]["sentences"])
    assert "dspark's frontier lies on or above mtp-1's within the noise? T = 0: yes; T = 1: yes." in said
    assert "Greedy answers" in said


def test_aa_is_said_to_be_one(tmp_path: Path) -> None:
    measured = cells({"dspark": 20.0, "dspark-again": 20.0}, seed=5)
    again = results(measured, tmp_path, [chosen("dspark", "--x"), chosen("dspark-again", "--x")])
    assert any("A/A: dspark and dspark-again are the same arm, and 0 of" in s for s in again["verdict"]["sentences"])
    assert "as it must be" in " ".join(again["verdict"]["sentences"])
    lying = results(
        cells({"dspark": 20.0, "dspark-again": 30.0}, repetitions=8),
        tmp_path,
        [chosen("dspark"), chosen("dspark-again")],
    )
    assert any("do not trust" in sentence for sentence in lying["verdict"]["sentences"])


def test_one_arm_or_one_repetition_gives_no_verdict(tmp_path: Path) -> None:
    for measured in (cells({"a": 20.0}), cells({"a": 20.0, "b": 30.0}, repetitions=1)):
        none = results(measured, tmp_path, [chosen("a"), chosen("b")])
        assert not none["verdict"]["conclusive"]
        assert none["verdict"]["headline"].startswith("No verdict")
        write_reports(none, tmp_path)
        jsonschema.validate(none, schema())


def test_an_arm_that_was_given_up_is_reported_and_in_no_ratio(tmp_path: Path) -> None:
    measured = cells({"a": 20.0, "b": 30.0, "c": 25.0})
    notes = {"stopped": {"b": "24 of its last 24 requests failed (24 HTTP 500)"}}
    sick = results(measured, tmp_path, [chosen(name) for name in "abc"], notes=notes)
    assert {"b"} & {row["arm"] for row in sick["comparisons"]} == set()
    (arm,) = (arm for arm in sick["arms"] if arm["name"] == "b")
    assert arm["status"] == "given up"
    assert any("b: given up: 24 of its last 24" in warning for warning in sick["verdict"]["warnings"])
    write_reports(sick, tmp_path)
    assert "given up: 24 of its last 24" in (tmp_path / "report.html").read_text()


def test_random_tokens_are_marked(tmp_path: Path) -> None:
    marked = results(
        cells({"a": 20.0, "b": 30.0}, accept={"b": 2}), tmp_path, [chosen("a"), chosen("b")],
        about={"fit_for_acceptance": False},
    )  # fmt: skip
    assert marked["acceptance"] == {}
    write_reports(marked, tmp_path)
    for name in ("report.md", "report.html"):
        assert "unfit for anything about acceptance" in (tmp_path / name).read_text()


def test_a_simulation_says_that_it_is_one(tmp_path: Path) -> None:
    arms = [chosen("a"), chosen("b")]
    write_reports(
        results(cells({"a": 20.0, "b": 30.0}), tmp_path, arms, about={"what": "SIMULATION: no model"}), tmp_path
    )
    for name in ("report.md", "report.html"):
        assert "SIMULATION: no model" in (tmp_path / name).read_text()


def test_who_is_judged_against_whom() -> None:
    assert question_for(["plain", "mtp-1", "dspark"], None, None, [], 1) == Question("dspark", "mtp-1")
    assert question_for(["plain", "ngram"], None, None, [3.0], 2) == Question("ngram", "plain", (3.0,), 2)
    assert question_for(["a", "b"], "a", None, [], 1) == Question("a", "b")


class _Elements(HTMLParser):
    """Start tags with attributes, and the text of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and "data-path" in self.tags[-1][1]:
            self.numbers.append((self.tags[-1][1], data))
            self.tags.append(("", {}))


def test_the_page_needs_no_network_and_its_numbers_are_the_results(found: dict[str, Any], folder: Path) -> None:
    page = (folder / "report.html").read_text()
    parser = _Elements()
    parser.feed(page)
    for tag, attributes in parser.tags:
        for name in ("src", "href"):
            value = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", value), (tag, value)
    assert len(parser.numbers) > 200
    for attributes, text in parser.numbers:
        value: Any = found
        for part in (attributes["data-path"] or "").split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        shown = f"{value * float(attributes['data-factor'] or 1):.{attributes['data-digits']}f}"
        assert text == shown
    # What came from outside stands as text.
    assert "a &lt;test&gt; processor" in page
    assert "'a </script> b'" not in page


def test_tables_have_captions_and_headers_and_charts_have_words(folder: Path) -> None:
    parser = _Elements()
    page = (folder / "report.html").read_text()
    parser.feed(page)
    count = {tag: sum(name == tag for name, _ in parser.tags) for tag in ("table", "caption", "thead", "figure")}
    assert count["table"] == count["caption"] == count["thead"] > 5
    drawn = [attributes for _, attributes in parser.tags if attributes.get("role") == "img"]
    assert len(drawn) == count["figure"] >= 8
    ids = {attributes["id"] for _, attributes in parser.tags if "id" in attributes}
    for attributes in drawn:
        assert {attributes["aria-labelledby"], attributes["aria-describedby"]} <= ids


@pytest.fixture
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: apt-get install {BROWSERS[0]}")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def _open(browser: Any, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page without a network; what its console complains of."""
    page = browser.new_context(offline=True, **options).new_page()
    complaints: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and complaints.append(request.url))
    page.goto(f"file://{folder / 'report.html'}")
    page.wait_for_selector("html[data-drawn]", timeout=30_000)
    return page, complaints


_CHECK_NUMBERS = """results => [...document.querySelectorAll("[data-path]")].filter(span => {
  const value = span.dataset.path.split("/").reduce((part, key) => part[key], results);
  const scaled = value * Number(span.dataset.factor), shown = Number(span.textContent);
  return !(Math.abs(scaled - shown) <= 0.5001 * 10 ** -Number(span.dataset.digits));
}).map(span => span.dataset.path)"""


def test_the_page_in_a_browser(browser: Any, folder: Path) -> None:
    page, complaints = _open(browser, folder)
    found = json.loads((folder / "results.json").read_text())
    assert page.evaluate("JSON.parse(document.getElementById('results').textContent)") == found
    assert page.evaluate(_CHECK_NUMBERS, found) == []
    curves = page.evaluate(
        "Object.fromEntries(document.getElementById('frontier-1').data.map(t => [t.meta.arm, [t.x, t.y]]))"
    )
    for arm, points in found["frontier"]["1"]["curves"].items():
        assert curves[arm] == [[p["user"] for p in points], [p["throughput"] for p in points]]
    charts = page.locator(".chart")
    assert charts.count() == int(page.get_attribute("html", "data-drawn")) >= 8
    for i in range(charts.count()):
        assert charts.nth(i).locator(".scatterlayer .trace path, .barlayer .point path").count() > 0
    _toggle(page)
    _hover(page)
    assert complaints == []


def _toggle(page: Any) -> None:
    """An arm is switched off and on again, with the keyboard."""
    drawn = "document.getElementById('frontier-0').querySelectorAll('.scatterlayer .trace').length"
    before = page.evaluate(drawn)
    box = page.get_by_role("checkbox", name="mtp-1")
    box.focus()
    page.keyboard.press("Space")
    page.wait_for_function(f"{drawn} === {before - 1}")
    assert page.locator("tr[data-arm='mtp-1']:visible").count() == 0
    assert page.locator("tr[data-arm='dspark']:visible").count() > 0
    assert page.inner_text("#announce") == "mtp-1 hidden"
    page.keyboard.press("Space")
    page.wait_for_function(f"{drawn} === {before}")
    assert page.locator("tr[data-arm='mtp-1']:visible").count() > 0


def _hover(page: Any) -> None:
    point = page.locator("#frontier-0 .scatterlayer .points path").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#frontier-0 .hoverlayer .hovertext")
    assert "tok/s each" in page.locator("#frontier-0 .hoverlayer .hovertext").first.text_content()


def test_the_page_on_a_phone_in_the_dark_and_on_paper(browser: Any, folder: Path) -> None:
    page, complaints = _open(browser, folder, viewport={"width": 360, "height": 740}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    background, text = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150 < sum(map(int, re.findall(r"\d+", text)[:3]))
    font = page.evaluate("document.getElementById('frontier-0').layout.font.color")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"document.getElementById('frontier-0').layout.font.color !== '{font}'")
    page.emulate_media(media="print")
    assert not page.is_visible(".arms")
    assert page.is_visible("#verdict .headline")
    assert complaints == []
