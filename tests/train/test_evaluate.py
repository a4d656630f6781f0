"""Teacher-forced accept length against the draft-verify loop, and the loop against plain decoding."""

from __future__ import annotations

import itertools

import pytest
import torch

from sglang_dspark.model.draft import DraftShape, DSparkDraft
from sglang_dspark.model.draft_vocabulary import DraftVocabulary
from sglang_dspark.train.data import Row
from sglang_dspark.train.decode import accept, decode, decode_rows, distribution
from sglang_dspark.train.evaluate import acceptance, evaluate, expected_rounds, mean_over_domains
from sglang_dspark.train.export import reduced as make_reduced
from sglang_dspark.train.generate import decode as plain_decode
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.target import Target


@pytest.fixture(scope="module")
def draft(shape: DraftShape, target: Target) -> DSparkDraft:
    made = from_target(shape, target, seed=0)
    torch.manual_seed(3)
    made.markov_head.markov_w2.weight.data.normal_(std=0.3)
    return made.eval().requires_grad_(False)


def test_expected_rounds_by_enumeration() -> None:
    torch.manual_seed(0)
    count, gamma = 4, 2
    chance = torch.rand(count, gamma, dtype=torch.float64)
    chance[count - 1, 1] = 0  # no label there
    visits, _ = expected_rounds(chance)
    total = 0.0
    for outcomes in itertools.product(range(gamma + 1), repeat=count):
        probability, rounds, anchor = 1.0, 0, 0
        for a, n in enumerate(outcomes):
            stop = 1 - float(chance[a, n]) if n < gamma else 1.0
            probability *= float(chance[a, :n].prod()) * stop
        while anchor < count:
            anchor += outcomes[anchor] + 1
            rounds += 1
        total += probability * rounds
    assert float(visits.sum()) == pytest.approx(total)


def test_greedy_loop_is_plain_decoding_and_teacher_forcing(draft: DSparkDraft, target: Target) -> None:
    prompts = [(5, 9, 11), (7, 3, 30, 21), (40, 41)]
    generator = torch.Generator().manual_seed(0)
    plain = plain_decode(target, prompts, 0.0, 30, generator)
    for prompt, response in zip(prompts, plain, strict=True):
        tokens, accepted = decode(draft, target, prompt, 0.0, 30, generator)
        assert tuple(tokens) == response
        visits, _ = expected_rounds(acceptance(draft, target, Row("x", "y", 0.0, prompt, response)))
        assert len(accepted) == round(float(visits.sum()))


def test_sampled_loop_agrees_with_teacher_forcing(draft: DSparkDraft, target: Target) -> None:
    generator = torch.Generator().manual_seed(0)
    prompts = [(5, 9, 11)] * 40
    texts = plain_decode(target, prompts, 1.0, 24, generator)
    rows = [Row("x", str(i), 1.0, prompts[0], r) for i, r in enumerate(texts) if len(r) > 1]
    exact = evaluate(draft, target, rows)["x", 1.0].mean
    measured = decode_rows(draft, target, rows, 24, seed=1)["x", 1.0].mean
    assert measured == pytest.approx(exact, rel=0.08)


@pytest.fixture(scope="module")
def reduced(draft: DSparkDraft) -> DSparkDraft:
    """The draft with two thirds of the tokens."""
    ids = torch.tensor([t for t in range(draft.shape.vocab_size) if t % 3])
    weights, shape = make_reduced(draft.state_dict(), draft.shape, DraftVocabulary(ids, draft.shape.vocab_size))
    made = DSparkDraft(shape)
    made.load_state_dict(weights)
    return made.eval().requires_grad_(False)


def test_a_reduced_vocabulary_in_loop_and_teacher_forcing(reduced: DSparkDraft, target: Target) -> None:
    """Greedy text is plain decoding's, with the rounds that teacher forcing counts; sampled accept lengths agree."""
    prompts = [(5, 9, 11), (7, 3, 30, 21), (40, 41)]
    generator = torch.Generator().manual_seed(0)
    for prompt, response in zip(prompts, plain_decode(target, prompts, 0.0, 30, generator), strict=True):
        tokens, accepted = decode(reduced, target, prompt, 0.0, 30, generator)
        assert tuple(tokens) == response
        visits, _ = expected_rounds(acceptance(reduced, target, Row("x", "y", 0.0, prompt, response)))
        assert len(accepted) == round(float(visits.sum()))
    texts = plain_decode(target, [(5, 9, 11)] * 40, 1.0, 24, generator)
    rows = [Row("x", str(i), 1.0, (5, 9, 11), r) for i, r in enumerate(texts) if len(r) > 1]
    exact = evaluate(reduced, target, rows)["x", 1.0].mean
    assert decode_rows(reduced, target, rows, 24, seed=1)["x", 1.0].mean == pytest.approx(exact, rel=0.08)


def test_a_token_outside_the_vocabulary_is_never_accepted(reduced: DSparkDraft, target: Target) -> None:
    for temperature in (0.0, 1.0):
        response = (4, 7, 9, 12, 6, 10)
        accept_chances = acceptance(reduced, target, Row("x", "y", temperature, (5, 9), response))
        for anchor in range(len(response) - 1):
            for k in range(min(3, len(response) - 1 - anchor)):
                if response[anchor + 1 + k] % 3 == 0:
                    assert accept_chances[anchor, k] == 0
                elif temperature == 1.0:
                    assert accept_chances[anchor, k] > 0


def test_accept_keeps_the_target_distribution() -> None:
    """The first emitted token is distributed as p, whatever q is."""
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    q = torch.tensor([[0.2, 0.3, 0.5]])
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(3)
    for _ in range(6000):
        drafted = [int(torch.multinomial(q[0], 1, generator=generator))]
        count, last = accept(p, q, drafted, generator)
        counts[drafted[0] if count else last] += 1
    assert float(((counts - 6000 * p[0]) ** 2 / (6000 * p[0])).sum()) < 13.8  # chi-square, 2 degrees, 0.1 %


def test_distribution_at_zero_temperature() -> None:
    assert distribution(torch.tensor([[1.0, 3.0, 2.0]]), 0).tolist() == [[0, 1, 0]]


def test_short_answers(draft: DSparkDraft, target: Target) -> None:
    """One token after the anchor, fewer than a block, and a stop in the middle of a block."""
    for response in ((7, 8), (7, 8, 9)):
        assert acceptance(draft, target, Row("x", "y", 1.0, (5, 6), response)).shape == (len(response) - 1, 3)
    tokens, _ = decode(draft, target, (5, 9), 0.0, 2, torch.Generator())
    assert len(tokens) <= 2


def test_mean_over_domains(draft: DSparkDraft, target: Target, rows: list[Row]) -> None:
    groups = evaluate(draft, target, [r for r in rows if len(r.r) > 1])
    means = mean_over_domains(groups)
    assert set(means) == {0.0, 1.0}
    assert means[1.0] == pytest.approx((groups["math", 1.0].mean + groups["chat", 1.0].mean) / 2)
    assert all(0 <= v <= 1 for group in groups.values() for v in group.by_position)
