"""What the live tests vary, and the few settings that contain every pair of its levels.

A new level is one entry of `FACTORS`. Levels name request parameters, server flags or how requests are sent.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# What is legal depends on the letter before; never finished, since no token holds a "~".
GRAMMAR = "([a-c][j-m]|[d-f]|[g-i][g-i])+~"
GAMMA = 4  # of the committed pair

FACTORS: dict[str, dict[str, dict[str, Any]]] = {
    "temperature": {"T=1": {"temperature": 1.0}, "T=0.3": {"temperature": 0.3}, "T=1.7": {"temperature": 1.7}},
    "filter": {"no filter": {}, "top-k": {"top_k": 5}, "top-p": {"top_p": 0.8}, "min-p": {"min_p": 0.1}},
    "penalty": {
        "no penalty": {},
        "repetition": {"repetition_penalty": 1.4},
        "presence+frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    },
    "bias": {"no bias": {}, "logit bias": {"logit_bias": {"5": 1.5, "9": -2.0, "12": 1.0}}},
    "grammar": {"no grammar": {}, "grammar": {"regex": GRAMMAR}},
    "batch": {"batch 16": {"batch": 16}, "batch 3": {"batch": 3}, "batch 1": {"batch": 1}},
    "prefix": {"new prompts": {"shared": False}, "cached prefix": {"shared": True}},
    "policy": {
        "fixed": {"policy": "fixed"},
        "fixed 2": {"policy": "fixed", "verify_length": 2},
        "threshold": {"policy": "threshold", "survival_threshold": 0.3},
    },
    "scheduling": {"no overlap": {"overlap": "off"}, "overlap": {"overlap": "on"}},
    "support": {"dense": {"support": 0}, "sparse": {"support": 6}},
}
SERVER_FACTORS = ("policy", "scheduling", "support")
REQUEST_FACTORS = ("temperature", "filter", "penalty", "bias", "grammar")


@dataclass(frozen=True)
class Setting:
    """One level of every factor, in the order of `FACTORS`."""

    levels: tuple[str, ...]

    def __str__(self) -> str:
        silent = ("no ", "new ")
        return ", ".join(level for level in self.levels if not level.startswith(silent))

    @cached_property
    def level(self) -> dict[str, str]:
        return dict(zip(FACTORS, self.levels, strict=True))

    def values(self, factors: tuple[str, ...]) -> dict[str, Any]:
        """The parameters that the levels of `factors` stand for."""
        merged: dict[str, Any] = {}
        for factor in factors:
            merged |= FACTORS[factor][self.level[factor]]
        return merged

    @property
    def server(self) -> dict[str, Any]:
        """Fields of `DSparkConfig`."""
        return self.values(SERVER_FACTORS)

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters of a request, its length not included."""
        return self.values(REQUEST_FACTORS)

    @property
    def batch(self) -> int:
        return int(self.values(("batch",))["batch"])

    @property
    def shared_prefix(self) -> bool:
        return bool(self.values(("prefix",))["shared"])


def pairs(levels: tuple[str, ...]) -> set[tuple[tuple[int, str], tuple[int, str]]]:
    """All pairs of (factor, level) that a row of levels contains."""
    return set(itertools.combinations(enumerate(levels), 2))


def all_pairs() -> set[tuple[tuple[int, str], tuple[int, str]]]:
    columns = [list(levels) for levels in FACTORS.values()]
    return {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(columns)), 2)
        for a in columns[i]
        for b in columns[j]
    }


def covering_array(tries: int = 10, seed: int = 9) -> list[Setting]:
    """Settings that contain every pair of levels: of several greedy searches the fewest, on the fewest servers."""
    rng = random.Random(seed)

    def cost(settings: list[Setting]) -> tuple[int, int]:
        return len(settings), len({str(setting.server) for setting in settings})

    return min((_greedy(rng) for _ in range(tries)), key=cost)


def _greedy(rng: random.Random) -> list[Setting]:
    columns = [list(levels) for levels in FACTORS.values()]
    missing, rows = all_pairs(), []
    while missing:
        candidates = []
        for _ in range(12):
            # Start from a pair that is still missing; then each factor, in random order, takes its best level.
            row: dict[int, str] = dict(rng.choice(sorted(missing)))
            for column in sorted(set(range(len(columns))) - set(row), key=lambda _: rng.random()):
                gains = {level: _gain(row, column, level, missing) for level in columns[column]}
                best = max(gains.values())
                row[column] = rng.choice([level for level, gain in gains.items() if gain == best])
            candidates.append(tuple(row[column] for column in range(len(columns))))
        chosen = max(candidates, key=lambda levels: len(pairs(levels) & missing))
        missing -= pairs(chosen)
        rows.append(Setting(chosen))
    return rows


def _gain(row: dict[int, str], column: int, level: str, missing: set[Any]) -> int:
    new = (column, level)
    return sum((min(new, old), max(new, old)) in missing for old in row.items())
