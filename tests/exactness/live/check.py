"""Judge what the engine drew: each token against its exact distribution given everything before it.

A token's context is whatever the engine had drawn, so texts need not repeat: observed minus expected counts are a
martingale (`conditional_chi_square`). Cells and groups look at the tokens one by one, in pairs, and by position. Draws
at the same time have to be independent, and so do those of one answer given their contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from live.reference import Array, Ints, Reference
from live.sampling import Drawn, Stream
from live.settings import GAMMA
from sglang_dspark.evaluate.statistics import GoodnessOfFit, conditional_chi_square, correlation_chi_square, holm

# Most likely token, the next one, all others.
RANKS = 3
# Positions from here on share a group: the first rounds differ, later ones start anywhere.
POSITIONS = 8
BIAS = 0.01


@dataclass(frozen=True)
class Evidence:
    """Drawn tokens `[N]` with their distributions `[N, V]`, the token before each, and its position in the answer.

    Attributes:
        residuals: `[S, L]`, the answers' tokens as numbers of mean 0 and variance 1; 0 where a context is left out.
        concurrent: answers drawn at a time.
        unsharp: contexts left out.
    """

    tokens: Ints
    probabilities: Array
    previous: Ints
    positions: Ints
    residuals: Array
    concurrent: int
    unsharp: int

    @property
    def impossible(self) -> int:
        """Drawn tokens that plain decoding cannot draw."""
        return int((self.probabilities[np.arange(len(self.tokens)), self.tokens] == 0).sum())


def evidence(reference: Reference, stream: Stream, drawn: Drawn) -> Evidence:
    """The first token of each answer is left out: the engine's prefill drew it. So are contexts where a filter's
    decision is within rounding, which depends on the context only."""
    p, sharp = reference.distributions(np.array(stream.prompts), drawn.outputs, stream.sampling)
    tokens, previous = drawn.outputs[:, 1:], drawn.outputs[:, :-1]
    positions = np.broadcast_to(np.arange(1, drawn.outputs.shape[1]), tokens.shape)
    kept = sharp[:, 1:]
    residuals = np.zeros(tokens.shape)
    residuals[kept] = residuals_of(tokens[kept], p[:, 1:][kept])
    return Evidence(
        tokens[kept], p[:, 1:][kept], previous[kept], positions[kept], residuals, stream.concurrent, int((~kept).sum())
    )


def residuals_of(tokens: Ints, probabilities: Array) -> Array:
    """Where each token stands in its distribution, the most likely first, as a uniform number scaled to variance 1.

    Uniform because a token's own share is filled at random (the randomised probability integral transform).
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    rank = np.argmax(order == tokens[:, None], axis=1)
    rows, ordered = np.arange(len(tokens)), np.take_along_axis(probabilities, order, axis=1)
    own = ordered[rows, rank]
    before = ordered.cumsum(axis=1)[rows, rank] - own
    return np.sqrt(12) * (before + own * np.random.default_rng(0).random(len(tokens)) - 0.5)


def by_rank(tokens: Ints, probabilities: Array) -> tuple[Ints, Array]:
    """Cells "most likely", "next", "any other" instead of tokens."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    rank = np.argmax(order == tokens[:, None], axis=1)
    ordered = np.take_along_axis(probabilities, order, axis=1)
    cells = np.concatenate([ordered[:, : RANKS - 1], ordered[:, RANKS - 1 :].sum(axis=1, keepdims=True)], axis=1)
    return np.minimum(rank, RANKS - 1), cells


def statistics(found: Evidence) -> dict[str, GoodnessOfFit]:
    ranks, cells = by_rank(found.tokens, found.probabilities)
    z = found.residuals
    return {
        "token": conditional_chi_square(found.tokens, found.probabilities),
        "pair of tokens": conditional_chi_square(found.tokens, found.probabilities, found.previous),
        "rank": conditional_chi_square(ranks, cells),
        "rank by position": conditional_chi_square(ranks, cells, np.minimum(found.positions, POSITIONS)),
        "between answers": correlation_chi_square(
            [z[lag:] * z[:-lag] for lag in range(1, max(2, min(found.concurrent, len(z))))]
        ),
        "within answers": correlation_chi_square([z[:, lag:] * z[:, :-lag] for lag in range(1, GAMMA + 1)]),
    }


def biased(probabilities: Array) -> Array:
    """Move `BIAS` of probability, on average over the contexts, from the most likely token to the next.

    Where a filter leaves one token there is nothing to move, so the others move more.
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    out, rows = probabilities.copy(), np.arange(len(probabilities))
    choice = probabilities[rows, order[:, 1]] > 0
    moved = np.where(choice, np.minimum(BIAS / choice.mean(), probabilities[rows, order[:, 0]]), 0.0)
    out[rows, order[:, 0]] -= moved
    out[rows, order[:, 1]] += moved
    return out


def draw_from(probabilities: Array, rng: np.random.Generator) -> Ints:
    """One token of each row."""
    edges = probabilities.cumsum(axis=1)
    return (edges[:, :-1] <= rng.random((len(edges), 1)) * edges[:, -1:]).sum(axis=1)


def power(found: Evidence, level: float, repetitions: int = 20) -> float:
    """Share of simulated samples of this size, at these contexts, with the planted bias, that are found at `level`."""
    rng, wrong = np.random.default_rng(0), biased(found.probabilities)
    p_values = [
        conditional_chi_square(*by_rank(draw_from(wrong, rng), found.probabilities)).p for _ in range(repetitions)
    ]
    return float(np.mean(np.array(p_values) < level))


@dataclass(frozen=True)
class Judged:
    """A setting's line of the table. `p` is its smallest Holm-adjusted p-value, over all settings and statistics."""

    setting: str
    tokens: int
    requests: int
    unsharp: int
    impossible: int
    rounds: int
    proposed: int
    accepted: int
    cached: int
    seconds: float
    power: float
    tests: dict[str, GoodnessOfFit]
    cells: str
    p: float
    verdict: str


def judge(results: dict[str, tuple[Evidence, Drawn]], alpha: float, with_power: bool = True) -> list[Judged]:
    """Verdicts: "pass", "fail", or "inconclusive" where nothing was drafted, accepted or rejected."""
    tests = {setting: statistics(found) for setting, (found, _) in results.items()}
    keys = [(setting, cells) for setting, group in tests.items() for cells in group]
    adjusted = dict(zip(keys, holm([tests[s][c].p for s, c in keys]), strict=True))
    judged = []
    for setting, (found, drawn) in results.items():
        cells = min(tests[setting], key=lambda name: tests[setting][name].p)
        p = adjusted[setting, cells]
        verdict = "fail" if p < alpha or found.impossible else "pass"
        if verdict == "pass" and not 0 < drawn.accepted < drawn.proposed:
            verdict = "inconclusive"
        found_bias = power(found, alpha / len(keys)) if with_power else float("nan")
        judged.append(
            Judged(
                setting=setting,
                tokens=len(found.tokens),
                requests=len(drawn.outputs),
                unsharp=found.unsharp,
                impossible=found.impossible,
                power=found_bias,
                tests=tests[setting],
                cells=cells,
                p=p,
                verdict=verdict,
                **{name: getattr(drawn, name) for name in ("rounds", "proposed", "accepted", "cached", "seconds")},
            )
        )
    return judged
