"""The trained loss of every head, through its parameters, against a naive one: loops in float64 and autograd."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.model.draft import DraftShape, DSparkDraft
from sglang_dspark.model.draft_vocabulary import DraftVocabulary
from sglang_dspark.train.blocks import Batch, build_batch
from sglang_dspark.train.data import Row
from sglang_dspark.train.evaluate import draft_outputs
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.loss import LossWeights, confidence_loss, position_weights, vocabulary_loss
from sglang_dspark.train.target import Target

HEADS = [
    ("vanilla", "none", 8), ("vanilla", "silu", 8), ("gated", "none", 8), ("gated", "silu", 8), ("rnn", "none", 8),
    ("vanilla", "none", 0),
]  # fmt: skip
WEIGHTS = LossWeights(0.3, 0.7, 1.0, 2.0)


def make(
    shape: DraftShape, target: Target, kind: str, activation: str, rank: int, reduced: bool, gamma: int
) -> DSparkDraft:
    vocabulary = DraftVocabulary(torch.arange(0, shape.vocab_size, 3), shape.vocab_size) if reduced else None
    shape = dataclasses.replace(
        shape, markov_head_type=kind, markov_activation=activation, markov_rank=rank, block_size=gamma,
        draft_vocab_size=0 if vocabulary is None else len(vocabulary.ids),
    )  # fmt: skip
    draft = from_target(shape, target, 0, vocabulary).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in [*draft.markov_head.parameters(), *draft.confidence_head.parameters()]:
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return draft


def batch_of(draft: DSparkDraft, target: Target, rows: list[Row]) -> Batch:
    """The longest row and the shortest with two labels: padding, and blocks that end with their row."""
    usable = sorted((r for r in rows if len(r.r) > 2), key=lambda r: len(r.r))
    chosen = [usable[0], usable[-1]]
    features = target.features(chosen, draft.shape.target_layer_ids, 64)
    anchors = [torch.arange(row.anchors.start, row.anchors.stop)[-3:] for row in chosen]
    return build_batch(chosen, features, anchors, draft.shape.block_size, draft.shape.mask_token_id)


def fused(draft: DSparkDraft, target: Target, batch: Batch) -> Tensor:
    """As `Trainer.train_step` computes it."""
    states, latents = draft_outputs(draft, target, batch)
    weights = position_weights(batch.slot, WEIGHTS.position_decay).double()
    weights = weights / weights.sum()
    top_ids, labels, vocabulary = batch.top_ids, batch.labels, draft.vocabulary
    if vocabulary is not None:
        top_ids, labels = vocabulary.index[top_ids], vocabulary.index[labels]
    head = draft.lm_head(target.lm_head).double()
    loss, l1, _ = vocabulary_loss(
        states, latents, draft.markov_head.w2, head, top_ids, batch.top_probs.double(), labels, weights, WEIGHTS, 7
    )
    logits = draft.confidence_head(states, draft.markov_head.embed(batch.previous))
    return loss + confidence_loss(logits, l1, weights)


def naive(draft: DSparkDraft, target: Target, batch: Batch) -> Tensor:
    """Position by position over dense vectors of the target's vocabulary, the formulas as the report writes them."""
    size = draft.shape.vocab_size
    where = torch.arange(batch.features.shape[1]).expand(len(batch.features), -1)
    context = draft.context(batch.features.double(), where)
    hidden = draft.block(target.embedding[batch.input_ids].double(), batch.positions, context, batch.mask).flatten(0, 1)
    weights = torch.exp(-batch.slot.double() / WEIGHTS.position_decay)
    weights = weights / weights.sum()
    head = draft.markov_head
    ids = torch.arange(size) if draft.vocabulary is None else draft.vocabulary.ids
    total = torch.zeros((), dtype=torch.float64)
    state = torch.zeros(0)
    for n, flat in enumerate(batch.kept.tolist()):
        h, slot = hidden[flat], int(batch.slot[n])
        logits = target.lm_head.double()[ids] @ h
        embedded = torch.zeros(0, dtype=torch.float64)
        if draft.shape.markov_rank:
            embedded = head.markov_w1.weight[batch.previous[n]]
            if slot == 0:
                state = torch.zeros_like(embedded)
            act = F.silu(embedded) if draft.shape.markov_activation == "silu" else embedded
            if draft.shape.markov_head_type == "gated":
                act = torch.sigmoid(head.gate_proj.weight @ torch.cat([h, embedded]) + head.gate_proj.bias) * act
            if draft.shape.markov_head_type == "rnn":
                z = head.joint_proj.weight @ torch.cat([state, embedded, h]) + head.joint_proj.bias
                g, c, o = z.chunk(3)
                state = g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh()
                act = o.tanh()
            logits = logits + head.markov_w2.weight @ act
        q = torch.zeros(size, dtype=torch.float64).index_copy(0, ids, logits.softmax(0))
        top, p = batch.top_ids[n], batch.top_probs[n].double()
        distance = (q[top] - p).abs().sum() + ((1 - q[top].sum()) - (1 - p.sum())).abs() * (len(top) < size)
        label = int(batch.labels[n])
        cross_entropy = -q[label].log() if label in ids.tolist() else torch.zeros(())
        confidence = draft.confidence_head.proj
        inputs = torch.cat([h, embedded]) if draft.shape.confidence_head_with_markov else h
        # The confidence head computes in float32.
        logit = (confidence.weight[0].float() @ inputs.float() + confidence.bias[0].float()).double()
        alpha = (1 - 0.5 * distance.detach()).clamp(0, 1)
        entropy = -(alpha * F.logsigmoid(logit) + (1 - alpha) * F.logsigmoid(-logit))
        total = total + weights[n] * (
            WEIGHTS.cross_entropy * cross_entropy + WEIGHTS.total_variation * distance + entropy
        )
    return total


@pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "every third token"])
@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize(("kind", "activation", "rank"), HEADS, ids=lambda v: str(v))
def test_gradients(
    shape: DraftShape, target: Target, rows: list[Row], kind: str, activation: str, rank: int, gamma: int, reduced: bool
) -> None:
    draft = make(shape, target, kind, activation, rank, reduced, gamma)
    batch = batch_of(draft, target, rows)
    batch.top_ids, batch.top_probs = batch.top_ids[:, :12], batch.top_probs[:, :12]
    loss, expected = fused(draft, target, batch), naive(draft, target, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    names, parameters = zip(*draft.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    moved = 0
    for name, a, b in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
        moved += bool((b != 0).any()) if b is not None else 0
    assert moved >= len(names) - 4  # a dead graph would agree with itself


def test_padding_changes_nothing(shape: DraftShape, target: Target, rows: list[Row]) -> None:
    """A row alone, and beside a longer one with no blocks of its own in the loss."""
    draft = make(shape, target, "rnn", "none", 8, False, 3)
    usable = sorted((r for r in rows if len(r.r) > 2), key=lambda r: len(r.tokens))
    short, long = usable[0], usable[-1]
    hidden = target.features([short, long], shape.target_layer_ids, 8)
    anchors = [torch.tensor([short.anchors.start]), torch.arange(long.anchors.start, long.anchors.stop)[-4:]]
    alone = build_batch([short], hidden[:1], anchors[:1], 3, 0)
    padded = build_batch([short, long], hidden, anchors, 3, 0)
    count = len(alone.kept)
    for one, both in zip(draft_outputs(draft, target, alone), draft_outputs(draft, target, padded), strict=True):
        torch.testing.assert_close(one, both[:count])
