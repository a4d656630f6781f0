"""Worlds and cost curves built by hand around the counter-example of the DSpark report, Appendix A."""

from __future__ import annotations

from collections.abc import Callable

from exact_prover.worlds import NAN, Row, Tokens, World, row

A, B = 0, 1
HALF, TARGET = row(1, 1), row(7, 3)

# SPS(1, 2, 3) = 1, 0.5, 0.45 tokens a second; index 0 is the empty batch.
CLIFF = (0.0, 1 / 1.0, 1 / 0.5, 1 / 0.45)
# The same one and two positions later: only the longest plan pays, and only when its last survival is high.
CLIFF_OF_THREE = (0.0, 1 / 1.0, 1 / 0.5, 1 / 0.36, 1 / 0.35)
CLIFF_OF_FOUR = (0.0, 1 / 1.0, 1 / 0.5, 1 / 0.36, 1 / 0.29, 1 / 0.28)


def world(
    gamma: int,
    confidence: Callable[[int, Tokens, Tokens], float],
    *,
    requests: int = 1,
    length: int | None = None,
    pair: bool = False,
    target: Callable[[int, Tokens], Row] | None = None,
    draft: Callable[[int, Tokens, Tokens], Row] | None = None,
    claimed: Callable[[int, Tokens, Tokens], Row] | None = None,
    dropped: Callable[[int, Tokens, Tokens], bool] | None = None,
) -> World:
    """Two tokens, p = (0.7, 0.3) and q = (0.5, 0.5) everywhere unless given."""
    return World(
        2,
        gamma,
        requests,
        gamma + 1 if length is None else length,
        target or (lambda request, emitted: TARGET),
        draft or (lambda request, emitted, drafted: HALF),
        confidence,
        pair=pair,
        claimed=claimed,
        dropped=dropped,
    )


def reveals(position: int, *, otherwise: float = 0.0, before: float = 0.8) -> Callable[[int, Tokens, Tokens], float]:
    """The confidence after `position` drafted tokens is 0.9 when the last of them is A, else `otherwise`.

    The first confidence is `before`, those between are 1.
    """

    def confidence(request: int, emitted: Tokens, seen: Tokens) -> float:
        if len(seen) < position:
            return before if not seen else 1.0
        return 0.9 if seen[position - 1] == A else otherwise

    return confidence


def appendix(**changes: object) -> World:
    """The counter-example itself: R = 1, γ = 2, `c_2 = 0.9` if `x_1 = A` else 0."""
    return world(2, reveals(1), **changes)  # type: ignore[arg-type]


def appendix_of_three(**changes: object) -> World:
    """One position later: γ = 3, `c_3 = 0.9` if `x_2 = A` else 0. The coupled cut does not cover it."""
    return world(3, reveals(2), **changes)  # type: ignore[arg-type]


def not_a_number(position: int) -> Callable[[int, Tokens, Tokens], float]:
    """As `reveals`, with NaN in place of 0."""
    return reveals(position, otherwise=NAN)
