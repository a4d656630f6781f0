"""The report as one HTML page that needs no network: the plotting library, the data and the style are inside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sglang_dspark.ab.report.charts import charts, colours
from sglang_dspark.ab.report.markdown import ratios_to
from sglang_dspark.ab.verdict import phrase

# Title, figure, digits, factor. Times are shown in milliseconds.
COLUMNS = (
    ("output tok/s per device", "busy_tokens_per_second", 1, 1),
    ("tok/s per user, median", "user_tokens_per_second", 1, 1),
    ("tok/s per user, p5", "user_tokens_per_second_p5", 1, 1),
    ("TTFT p50", "ttft_p50", 0, 1000),
    ("TTFT p95", "ttft_p95", 0, 1000),
    ("TTFT p99", "ttft_p99", 0, 1000),
    ("TPOT p50", "tpot_p50", 1, 1000),
    ("TPOT p95", "tpot_p95", 1, 1000),
    ("TPOT p99", "tpot_p99", 1, 1000),
    ("ITL p50", "inter_token_p50", 1, 1000),
    ("ITL p95", "inter_token_p95", 1, 1000),
    ("ITL p99", "inter_token_p99", 1, 1000),
    ("accept length", "accept_length", 2, 1),
    ("verified per emitted", "verified_per_emitted", 2, 1),
    ("budget", "budget", 2, 1),
    ("failed", "failed", 0, 1),
)


def page(found: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        found: the results (`results.collect`); every number on the page names its place in them.
    """
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("sglang_dspark.ab.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    source = environment.loader
    assert source is not None
    drawn = charts(found)
    return environment.get_template("page.html.j2").render(
        found=found,
        charts=drawn,
        colours=colours([arm["name"] for arm in found["arms"]]),
        columns=COLUMNS,
        number=_Numbers(found),
        phrase=phrase,
        ratios=_places_of_ratios(found),
        style=Markup(source.get_source(environment, "page.css")[0]),
        script=Markup(source.get_source(environment, "page.js")[0]),
        plotly=Markup(get_plotlyjs()),
        results=_inline(found),
        figures=_inline({chart["id"]: {"data": chart["data"], "layout": chart["layout"]} for chart in drawn}),
    )


def _inline(value: Any) -> Markup:
    """JSON that can stand inside a script element."""
    return Markup(json.dumps(value).replace("</", "<\\/").replace("<!--", "<\\!--"))


def _places_of_ratios(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Ratios to the baseline by `arm|scenario|metric`."""
    rows = ratios_to(found, found["question"]["baseline"])
    return {"|".join(key): row for key, row in rows.items()}


class _Numbers:
    """Numbers of the results as text that says where it is from, so that a test can compare the two."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def __call__(self, path: str, digits: int = 2, factor: float = 1) -> Markup:
        """The number at `path` (keys and indices joined by `/`), or nothing where it is null."""
        value: Any = self._found
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value.get(part)
        if value is None:
            return Markup('<span class="none" aria-label="none">–</span>')
        return Markup('<span data-path="{}" data-digits="{}" data-factor="{}">{}</span>').format(
            path, digits, factor, f"{value * factor:.{digits}f}"
        )
