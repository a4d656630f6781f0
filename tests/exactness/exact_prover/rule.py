"""The accept rule (algorithm, step 6) in exact arithmetic: every way one request's round can end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from exact_prover.worlds import Row, Tokens


def residual(p: Row, q: Row) -> Row:
    """`(p - q)^+` normalised; `p` itself where nothing is left."""
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(rest)
    return tuple(r / total for r in rest) if total else p


def choose(weights: Row, uniform: Fraction) -> int:
    """The first token whose cumulative weight exceeds the uniform's share of the total."""
    target, total = uniform * sum(weights), Fraction(0)
    for token, weight in enumerate(weights):
        total += weight
        if target < total:
            return token
    raise ValueError("weights: expected a positive sum and a uniform below 1")


def decide(
    p: Callable[[Tokens], Row],
    q: Callable[[int], Row],
    draft: Tokens,
    length: int,
    usable: int,
    coupled: bool,
    accepts: Sequence[Fraction],
    last: Callable[[int], Fraction],
) -> Tokens:
    """What the rule emits for given uniforms: `accepts[k]` tests position k, `last(k)` picks a new token there."""
    tested = min(length + 1, usable) if coupled else length
    for k in range(tested):
        target, law = p(draft[:k]), q(k)
        if accepts[k] * law[draft[k]] >= target[draft[k]]:
            return (*draft[:k], choose(residual(target, law), last(k)))
    if tested > length:
        return draft[:tested]
    return (*draft[:tested], choose(p(draft[:tested]), last(tested)))


def outcomes(
    p: Callable[[Tokens], Row],
    q: Callable[[int], Row],
    draft: Tokens,
    length: int,
    usable: int,
    coupled: bool,
) -> Iterator[tuple[Tokens, Fraction]]:
    """Emitted tokens of one round and their probability, given the draft and the verify length.

    Args:
        p: accepted tokens -> the target's law of the next one.
        q: position in the block, from 0 -> the law in the acceptance test.
        draft: `[gamma]` drafted tokens.
        length: ℓ, at most `usable`.
        usable: positions that were drawn at all.
        coupled: at the cut, test the already drawn token; otherwise draw the last token from p.
    """
    assert length <= usable <= len(draft)
    tested = min(length + 1, usable) if coupled else length
    reached = Fraction(1)
    for k in range(length + 1):
        target = p(draft[:k])
        if k == tested:
            yield from (((*draft[:k], v), reached * w) for v, w in enumerate(target) if w)
            return
        x, law = draft[k], q(k)
        accepted = min(Fraction(1), target[x] / law[x]) if law[x] else Fraction(int(target[x] > 0))
        if accepted < 1:
            left = reached * (1 - accepted)
            yield from (((*draft[:k], v), left * w) for v, w in enumerate(residual(target, law)) if w)
            reached *= accepted
        if not reached:
            return
    # Only the coupled cut ends here: x_{ℓ+1} was tested and passed.
    yield draft[: length + 1], reached
