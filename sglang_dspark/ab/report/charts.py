"""The charts of the page, as Plotly figures in plain values. Every trace names its arm, for switching arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Okabe and Ito's colours, told apart by colour-blind readers too; symbols and dashes differ as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7F7F7F")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")


def charts(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Charts with `id`, `section`, `title`, `summary` (for a screen reader), `data` and `layout`.

    Args:
        found: the results (`results.collect`).
    """
    arms = [arm["name"] for arm in found["arms"]]
    made = [_frontier(found, temperature, arms) for temperature in found["frontier"]]
    for name, title, axis in (
        ("busy_tokens_per_second", "Throughput over load", "tok/s per device"),
        ("budget", "Budget over load", "draft tokens verified per request and round"),
        ("verified_per_emitted", "Cost of verification over load", "verified tokens per emitted token"),
    ):
        made += [_over_load(found, name, title, axis, temperature, arms) for temperature in _temperatures(found)]
    made += [_acceptance(found, temperature, arms) for temperature in _temperatures(found)]
    return [chart for chart in made if chart["data"]]


def colours(arms: Sequence[str]) -> dict[str, str]:
    """Colour by arm."""
    return {arm: _COLOURS[i % len(_COLOURS)] for i, arm in enumerate(arms)}


def _style(arm: str, arms: Sequence[str]) -> dict[str, Any]:
    place = arms.index(arm) % len(_COLOURS)
    return {
        "name": arm,
        "meta": {"arm": arm},
        "line": {"color": _COLOURS[place], "dash": _DASHES[place], "width": 2},
        "marker": {"color": _COLOURS[place], "symbol": _SYMBOLS[place], "size": 9},
    }


def _temperatures(found: Mapping[str, Any]) -> list[float]:
    return sorted({scenario["temperature"] for scenario in found["scenarios"]})


def _frontier(found: Mapping[str, Any], temperature: str, arms: Sequence[str]) -> dict[str, Any]:
    curves = found["frontier"][temperature]["curves"]
    data = []
    for arm, points in curves.items():
        style = _style(arm, arms)
        best = [point["pareto"] for point in points]
        style["marker"]["symbol"] = [style["marker"]["symbol"] + ("" if b else "-open") for b in best]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text",
                "x": [point["user"] for point in points],
                "y": [point["throughput"] for point in points],
                "text": [f"{point['load']:g}" for point in points],
                "textposition": "top right",
                "textfont": {"size": 10},
                "hovertemplate": f"{arm}, %{{text}} users<br>%{{x:.2f}} tok/s each<br>%{{y:.1f}} in all<extra></extra>",
                **style,
            }
        )
    ends = "; ".join(
        f"{arm} from {points[0]['user']:.1f} tok/s per user at {points[0]['throughput']:.1f} tok/s per device to "
        f"{points[-1]['user']:.1f} at {points[-1]['throughput']:.1f}"
        for arm, points in curves.items()
    )
    return {
        "id": f"frontier-{temperature}",
        "section": "frontier",
        "title": f"Frontier at T = {temperature}",
        "summary": f"Throughput per device over speed per user. {ends}.",
        "data": data,
        "layout": _layout("tok/s per user", "tok/s per device", logarithmic="xy"),
    }


def _over_load(
    found: Mapping[str, Any], name: str, title: str, axis: str, temperature: float, arms: Sequence[str]
) -> dict[str, Any]:
    loads = {
        s["key"]: s["load"] for s in found["scenarios"] if s["kind"] == "closed" and s["temperature"] == temperature
    }
    data: list[dict[str, Any]] = []
    for arm in arms:
        points = [
            (loads[cell["scenario"]], cell[name])
            for cell in found["cells"]
            if cell["arm"] == arm and cell["scenario"] in loads and cell.get(name) is not None
        ]
        if points:
            points.sort()
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [load for load, _ in points],
                    "y": [value for _, value in points],
                    "hovertemplate": f"{arm}, %{{x}} users: %{{y:.2f}}<extra></extra>",
                    **_style(arm, arms),
                }
            )
    layout = _layout("concurrent requests", axis, logarithmic="x")
    layout["xaxis"] |= {
        "tickvals": sorted(loads.values()),
        "ticktext": [f"{load:g}" for load in sorted(loads.values())],
    }
    layout["yaxis"]["rangemode"] = "tozero"
    ends = "; ".join(f"{trace['name']} {trace['y'][0]:.2f} to {trace['y'][-1]:.2f}" for trace in data)
    return {
        "id": f"{name}-{temperature:g}",
        "section": "adaptation",
        "title": f"{title}, T = {temperature:g}",
        "summary": f"{axis}, from the lowest to the highest load: {ends}.",
        "data": data,
        "layout": layout,
    }


def _acceptance(found: Mapping[str, Any], temperature: float, arms: Sequence[str]) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for arm in arms:
        lengths = found["acceptance"].get(arm, {}).get(f"{temperature:g}", {})
        if lengths:
            style = _style(arm, arms)
            values = list(lengths.values())
            data.append(
                {
                    "type": "bar",
                    "name": arm,
                    "meta": {"arm": arm},
                    "marker": {"color": style["marker"]["color"]},
                    "x": list(lengths),
                    "y": [length["value"] for length in values],
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": [length["high"] - length["value"] for length in values],
                        "arrayminus": [length["value"] - length["low"] for length in values],
                    },
                    "hovertemplate": f"{arm}, %{{x}}: %{{y:.2f}}<extra></extra>",
                }
            )
    shown = "; ".join(f"{t['name']} {t['y'][-1]:.2f}" for t in data)
    return {
        "id": f"acceptance-{temperature:g}",
        "section": "acceptance",
        "title": f"Accept length by domain, T = {temperature:g}",
        "summary": f"Tokens a round, means over domains: {shown}.",
        "data": data,
        "layout": _layout("", "tokens per request and round") | {"barmode": "group"},
    }


def _layout(x: str, y: str, logarithmic: str = "") -> dict[str, Any]:
    def axis(name: str, title: str) -> dict[str, Any]:
        kind = {"type": "log", "dtick": "D1", "tickformat": "~g"} if name in logarithmic else {}
        return {"title": {"text": title}, "automargin": True, **kind}

    return {
        "xaxis": axis("x", x),
        "yaxis": axis("y", y),
        "showlegend": False,
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "height": 380,
        "hovermode": "closest",
    }
