"""Small worlds: a target, a draft and a confidence over a few tokens, as exact tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Tokens = tuple[int, ...]
Row = tuple[Fraction, ...]

# One object, so that tuples that hold it compare equal and can be cached.
NAN = math.nan


@dataclass(frozen=True)
class World:
    """What is drawn from. Every callable is a pure function of its arguments.

    Attributes:
        vocab: V, tokens are 0..V-1.
        gamma: block size.
        requests: R.
        length: every request ends after this many tokens; also where the distributions are compared.
        target: (request, emitted tokens) -> p, what plain decoding draws the next token from.
        draft: (request, emitted, drafted before it in this block) -> q.
        confidence: (request, emitted, drafted tokens it may see) -> c_k; sees k - 1 tokens, or k in the pair form.
        pair: c_k sees x_k too.
        broken: (request, emitted, drafted before it) -> the draft's output at this position is not finite.
        claimed: the q of the acceptance test and of the residual, when it is not the one drawn from (a planted error).
        dropped: (request, emitted, drafted up to and including this position) -> the drawn token is thrown away, as if
            it had never been drawn (a planted error).
        end: an end-of-sequence token, after which the text is padded with it. Nothing past a drafted one is verified.
    """

    vocab: int
    gamma: int
    requests: int
    length: int
    target: Callable[[int, Tokens], Row]
    draft: Callable[[int, Tokens, Tokens], Row]
    confidence: Callable[[int, Tokens, Tokens], float]
    pair: bool = False
    broken: Callable[[int, Tokens, Tokens], bool] | None = None
    claimed: Callable[[int, Tokens, Tokens], Row] | None = None
    dropped: Callable[[int, Tokens, Tokens], bool] | None = None
    end: int | None = None

    def finished(self, emitted: Tokens) -> bool:
        return len(emitted) >= self.length or (self.end is not None and self.end in emitted)

    def closed(self, emitted: Tokens) -> Tokens:
        """Cut to `length`, and padded with the end token after its first occurrence."""
        if self.end is not None and self.end in emitted:
            emitted = emitted[: emitted.index(self.end) + 1] + (self.end,) * self.length
        return emitted[: self.length]

    def finite(self, request: int, emitted: Tokens, draft: Tokens) -> int:
        """Leading positions of the block whose draft output was finite: what was drawn at all."""
        if self.broken is None:
            return self.gamma
        return next((k for k in range(self.gamma) if self.broken(request, emitted, draft[:k])), self.gamma)

    def usable(self, request: int, emitted: Tokens, draft: Tokens) -> int:
        """Leading positions the accept may test."""
        finite = self.finite(request, emitted, draft)
        if self.dropped is None:
            return finite
        return next((k for k in range(finite) if self.dropped(request, emitted, draft[: k + 1])), finite)

    def confidences(self, request: int, emitted: Tokens, draft: Tokens) -> tuple[float, ...]:
        """`[gamma]`, NaN where the draft's output was not finite."""
        finite = self.finite(request, emitted, draft)
        seen = 1 if self.pair else 0
        return tuple(
            self.confidence(request, emitted, draft[: k + seen]) if k < finite else NAN for k in range(self.gamma)
        )


def row(*weights: int | str | Fraction) -> Row:
    """Normalised: `row(7, 3)` is (7/10, 3/10)."""
    values = [Fraction(w) for w in weights]
    return tuple(v / sum(values) for v in values)


# Mostly high, so that schedules reach deep into the block and differ.
PALETTE = (0.0, 0.4, 0.75, 0.9, 0.95, 1.0)


def random_world(
    seed: int,
    *,
    vocab: int,
    gamma: int,
    requests: int = 1,
    length: int,
    support: int | None = None,
    filtered: bool = False,
    greedy: bool = False,
    pair: bool = False,
    nan: bool = False,
    broken: bool = False,
    end: int | None = None,
) -> World:
    """A world whose every table entry depends on the whole context.

    Args:
        support: q lives on this many tokens, chosen per position before anything is drawn (sparse form).
        filtered: p has zeros (a grammar or top-k), and q is restricted to p's support.
        greedy: p and q are deterministic (temperature 0).
        nan: some confidences are not a number.
        broken: some draft outputs are not finite.
        end: see `World.end`.
    """

    def generator(*key: object) -> random.Random:
        return random.Random(repr((seed, *key)))

    def weights(rng: random.Random, allowed: list[int]) -> Row:
        if greedy:
            allowed = [rng.choice(allowed)]
        return row(*(rng.randint(1, 4) if v in allowed else 0 for v in range(vocab)))

    @cache
    def target(request: int, emitted: Tokens) -> Row:
        rng = generator("p", request, emitted)
        allowed = sorted(rng.sample(range(vocab), rng.randint(1, vocab))) if filtered else list(range(vocab))
        return weights(rng, allowed)

    @cache
    def draft(request: int, emitted: Tokens, drafted: Tokens) -> Row:
        allowed = list(range(vocab))
        if support is not None:
            allowed = sorted(generator("C", request, emitted, len(drafted)).sample(allowed, support))
        if filtered:
            legal = target(request, emitted + drafted)
            allowed = [v for v in allowed if legal[v] > 0] or [v for v in range(vocab) if legal[v] > 0]
        return weights(generator("q", request, emitted, drafted), allowed)

    @cache
    def confidence(request: int, emitted: Tokens, seen: Tokens) -> float:
        rng = generator("c", request, emitted, seen)
        return NAN if nan and rng.random() < 0.25 else rng.choice(PALETTE)

    @cache
    def is_broken(request: int, emitted: Tokens, drafted: Tokens) -> bool:
        return generator("broken", request, emitted, drafted).random() < 0.25

    return World(
        vocab, gamma, requests, length, target, draft, confidence, pair, is_broken if broken else None, end=end
    )
