"""The picture of a profile: the model's time surfaces with the measured points, and steps per second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sglang_dspark import plotting
from sglang_dspark.schedule.cost import CostModel
from sglang_dspark.schedule.profile import MeasuredPoint, Profile


def draw(profile: Profile, path: Path) -> None:
    """Four panels: time over tokens at the shortest and the longest context, over requests, and SPS over tokens.

    Args:
        profile: with its points.
        path: of the PNG.
    """
    model = CostModel.from_profile(profile)
    trust = "held-out error unknown" if profile.held_out_error is None else f"held-out {profile.held_out_error:.1%}"
    device = profile.identity.device if profile.identity else profile.source
    title = f"{profile.about.get('model', 'profile')} on {device}: {'trusted' if profile.trusted else 'NOT trusted'}"
    note = f"Points: medians of measured rounds, bars between quartiles. Lines: the fit ({trust})."
    figure, axes = plotting.new_figure(title, 2, 2, note)
    drafted = [p for p in profile.points if p.drafted]
    contexts = _contexts(profile)
    for panel, mean in ((axes[0], contexts[0]), (axes[1], contexts[-1])):
        _over_tokens(panel, model, profile.gamma, [p for p in drafted if _near(p, mean)], mean)
    _over_requests(axes[2], model, profile, contexts[0])
    _steps(axes[3], model, profile, contexts)
    plotting.save(figure, path)


def _over_tokens(axes: Any, model: CostModel, gamma: int, points: list[MeasuredPoint], mean: int) -> None:
    requests = sorted({p.requests for p in points})
    shown = sorted({requests[i] for i in np.linspace(0, len(requests) - 1, 9).round().astype(int)})
    for count, colour in zip(shown, plotting.shades(len(shown)), strict=True):
        mine = [p for p in points if p.requests == count]
        tokens = np.arange(count, count * (1 + gamma) + 1)
        seconds = model.round_seconds(count, count * mean, gamma)[count:]
        axes.plot(tokens, 1e3 * seconds, color=colour, label=str(count))
        _scatter(axes, [p.tokens for p in mine], mine, colour)
    plotting.label(axes, f"Round time, context {mean} each", "verified tokens M", "ms", legend="requests")


def _over_requests(axes: Any, model: CostModel, profile: Profile, mean: int) -> None:
    gamma = profile.gamma
    points = [p for p in profile.points if _near(p, mean)]
    drafted = [p for p in points if p.drafted]
    counts = np.arange(1, max(p.requests for p in profile.points) + 1).tolist()
    rounds = [model.round_seconds(r, r * mean, gamma) for r in counts]
    skipped = [model.undrafted_seconds(r, r * mean) for r in counts]
    families: tuple[tuple[str, list[Any], list[MeasuredPoint]], ...] = (
        ("every request verifies γ", [t[-1] for t in rounds], [p for p in drafted if _is_full(p, gamma)]),
        ("ℓ = 0", [t[r] for r, t in zip(counts, rounds, strict=True)], [p for p in drafted if p.tokens == p.requests]),
        ("ℓ = 0, draft skipped", skipped, [p for p in points if not p.drafted]),
    )
    for (name, line, mine), colour in zip(families, plotting.shades(len(families)), strict=True):
        axes.plot(counts, 1e3 * np.array(line), color=colour, label=name)
        _scatter(axes, [p.requests for p in mine], mine, colour)
    plotting.label(axes, f"Round time, context {mean} each", "requests R", "ms", legend="")


def _steps(axes: Any, model: CostModel, profile: Profile, contexts: list[int]) -> None:
    gamma = profile.gamma
    full = [p for p in profile.points if p.drafted and _is_full(p, gamma)]
    counts = np.arange(1, max(p.requests for p in profile.points) + 1)
    for mean, colour in zip(contexts, plotting.shades(len(contexts)), strict=True):
        rates = [1 / model.round_seconds(r, r * mean, gamma)[-1] for r in counts.tolist()]
        axes.plot(counts * (1 + gamma), rates, color=colour, label=str(mean))
        mine = [p for p in full if _near(p, mean)]
        axes.plot(
            [p.tokens for p in mine], [1 / p.seconds for p in mine], "o", color=colour, markersize=plotting.MARKER_SIZE
        )
    title = "Steps per second, every request verifies γ"
    plotting.label(axes, title, "verified tokens B", "SPS(B)", legend="context each")


def _scatter(axes: Any, x: list[int], points: list[MeasuredPoint], colour: Any) -> None:
    middle = np.array([p.seconds for p in points])
    spread = np.array([[p.seconds - p.lower_quartile for p in points], [p.upper_quartile - p.seconds for p in points]])
    axes.errorbar(x, 1e3 * middle, 1e3 * spread, fmt="o", color=colour, elinewidth=0.7, markersize=plotting.MARKER_SIZE)


def _contexts(profile: Profile) -> list[int]:
    """Representative mean contexts: the middle of each cluster of measured ones, at most four."""
    means = np.sort([p.context / p.requests for p in profile.points if p.drafted])
    groups = np.split(means, np.flatnonzero(np.diff(np.log(np.maximum(means, 1))) > np.log(1.5)) + 1)
    middles = [round(float(np.median(g))) for g in groups]
    return middles if len(middles) <= 4 else [middles[i] for i in (0, len(middles) // 3, 2 * len(middles) // 3, -1)]


def _is_full(point: MeasuredPoint, gamma: int) -> bool:
    return point.tokens == point.requests * (1 + gamma)


def _near(point: MeasuredPoint, mean: int) -> bool:
    return 1 / 1.5 < (point.context / point.requests) / mean < 1.5
