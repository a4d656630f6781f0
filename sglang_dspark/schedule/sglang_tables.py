"""SGLang's own cost tables: read into a profile, and written from one, as the engine's planner looks them up.

The one-dimensional table gives steps per second by verified tokens, and the engine takes the probe at or below a count.
The additive one gives seconds by requests and by verified tokens, interpolated between probes and flat outside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sglang_dspark.errors import ConfigError
from sglang_dspark.schedule.cost import CostModel, Curve, Surface
from sglang_dspark.schedule.profile import Profile

_STEPS = ("sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens")
_ADDITIVE = ("bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
# A foreign table does not say; nothing but the shape of simulations depends on it.
_GAMMA = 7
_MOST_PROBES = 1024


def recognises(data: Mapping[str, Any]) -> bool:
    """Whether a file's JSON is one of the two tables."""
    return "sample_batch_tokens" in data or "bias_seconds" in data


def read(data: Mapping[str, Any]) -> Profile:
    """The profile that a table amounts to; it has no identity, and a table of one probe is uncalibrated.

    Where a longer step is listed as the faster one, the slower time is taken for both.

    Raises:
        ConfigError: a field is missing or wrong.
    """
    wanted = _STEPS if "sample_batch_tokens" in data else _ADDITIVE
    if missing := [name for name in wanted if name not in data]:
        raise ConfigError(f"{missing[0]}: missing from a table that has {', '.join(sorted(data))}")
    if wanted is _STEPS:
        steps = _numbers(data, "sample_steps_per_sec")
        if not (steps > 0).all():
            raise ConfigError(f"sample_steps_per_sec: expected positive rates, got {steps.tolist()}")
        tokens = _curve(data["sample_batch_tokens"], 1.0 / steps)
        return Profile(_GAMMA, "sglang-steps", Surface(0.0, _flat(), tokens))
    bias = float(data["bias_seconds"])
    requests = _curve(data["bs_probes"], _numbers(data, "alpha_seconds"))
    tokens = _curve(data["m_probes"], _numbers(data, "theta_seconds"))
    return Profile(_GAMMA, "sglang-additive", Surface(bias, requests, tokens))


def steps_table(profile: Profile, context: int) -> dict[str, Any]:
    """The one-dimensional table, for requests that all verify γ tokens at `context` committed tokens each.

    It lists every count up to the largest measured one, at most 1,024 of them evenly spaced: the engine looks up the
    probe below, which would be too fast if it were far off.
    """
    model, last = CostModel.from_profile(profile), profile.drafted.tokens.probes[-1]
    counts = np.unique(np.linspace(1, last, min(last, _MOST_PROBES)).round().astype(int))
    seconds = []
    for count in counts.tolist():
        requests = -(-count // (1 + profile.gamma))
        seconds.append(float(model.round_seconds(requests, requests * context, profile.gamma)[count]))
    rates = 1.0 / np.maximum.accumulate(seconds)
    return dict(zip(_STEPS, (counts.tolist(), rates.tolist(), last), strict=True))


def additive_table(profile: Profile, context: int) -> dict[str, Any]:
    """The additive table at `context` committed tokens for each request; exact at the profile's own probes."""
    surface, graphs = profile.drafted, profile.graphs
    requests = _with_steps(surface.requests.probes, graphs.requests)
    tokens = _with_steps(surface.tokens.probes, graphs.tokens)
    alpha = surface.requests.at(graphs.padded(requests, graphs.requests))
    theta = surface.tokens.at(graphs.padded(tokens, graphs.tokens))
    alpha += surface.context_seconds * context * requests
    theta += surface.token_context_seconds * context * tokens
    # The engine demands a positive bias.
    bias = max(surface.bias_seconds + float(alpha[0] + theta[0]), 1e-9)
    values = (bias, requests.tolist(), (alpha - alpha[0]).tolist(), tokens.tolist(), (theta - theta[0]).tolist())
    return dict(zip(_ADDITIVE, values, strict=True))


def _with_steps(probes: Sequence[int], sizes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Probes, and both sides of each captured size within them; interpolation is then a step."""
    steps = [count for size in sizes for count in (size, size + 1) if count <= probes[-1]]
    return np.unique(np.asarray([*probes, *steps], dtype=np.int64))


def _curve(probes: Any, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Curve:
    try:
        return Curve(tuple(int(p) for p in probes), tuple(np.maximum.accumulate(values).tolist()))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"probes: {error}") from error


def _flat() -> Curve:
    return Curve((1,), (0.0,))


def _numbers(data: Mapping[str, Any], name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        values = np.asarray(data[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ConfigError(f"{name}: expected a list of numbers, got {data[name]!r}")
    return values
