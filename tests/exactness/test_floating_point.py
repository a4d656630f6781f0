"""What float32 rows leave of the exact rule: the emitted law of the very numbers, in exact arithmetic."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import torch
from exact_prover.enumeration import distance
from exact_prover.rule import outcomes
from exact_prover.worlds import row


def test_float32_rows_move_the_law_by_less_than_a_millionth() -> None:
    """p and q are float32 softmaxes, whose sums miss 1; tokens are drawn in proportion to them."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for temperature in (0.3, 1.0, 1.7):
        for _ in range(6):
            logits = torch.randn((2, 12), generator=generator) * 3.0
            p, q = ([Fraction(float(w)) for w in torch.softmax(x / temperature, dim=-1)] for x in logits)
            law: dict[int, Fraction] = defaultdict(Fraction)
            for x, chance in enumerate(row(*q)):
                ends = outcomes(lambda before, p=p: tuple(p), lambda k, q=q: tuple(q), (x,), 0, 1, coupled=True)
                for tokens, weight in ends:
                    law[tokens[0]] += chance * weight
            worst = max(worst, float(distance(law, dict(enumerate(row(*p))))))
    assert 0.0 < worst < 1e-6
    print(f"largest total variation per token: {worst:.2e}")
