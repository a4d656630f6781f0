"""Accept length of a draft on text of the target, exact and without sampling noise.

On text `y` that the target emitted, position k of a block is accepted with probability `min(1, q(y)/p(y))` given that
the positions before it were (at T = 0: when `y` is the draft's argmax). This is the draft-verify loop's own law:
accepting needs the draft to have drawn `y`, and emitting `y` by any way has probability `p(y)`. So one teacher-forced
pass over all anchors gives the chance of every accept length, and walking over the anchors the expected rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.model.draft import DSparkDraft
from sglang_dspark.train.blocks import Batch, build_batch
from sglang_dspark.train.data import Row
from sglang_dspark.train.target import RowFeatures, Target


@dataclass
class AcceptLength:
    """Tokens and expected rounds of a group of answers, and per-position acceptance."""

    tokens: float = 0.0
    rounds: float = 0.0
    reached: Tensor = field(default_factory=lambda: torch.zeros(0))
    accepted: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def mean(self) -> float:
        """Tokens per round of the target, the bonus token counted."""
        return self.tokens / self.rounds if self.rounds else float("nan")

    @property
    def by_position(self) -> list[float]:
        """Acceptance of position k given that the positions before it were accepted."""
        return (self.accepted / self.reached.clamp_min(1e-9)).tolist()

    def add(self, tokens: float, rounds: float, reached: Tensor, accepted: Tensor) -> None:
        self.tokens += tokens
        self.rounds += rounds
        self.reached = self.reached + reached if len(self.reached) else reached
        self.accepted = self.accepted + accepted if len(self.accepted) else accepted


def expected_rounds(accept: Tensor) -> tuple[Tensor, Tensor]:
    """Walk over a row's anchors.

    Args:
        accept: float64 [A, gamma]: chance that position k of the block at anchor a is accepted, the ones before it
            having been. Zero past the row's end.

    Returns:
        Chance that each of the A positions is the anchor of a round, [A], and the chance that accepted tokens reach
        position k of a block, [A, gamma].
    """
    count, gamma = accept.shape
    survive = accept.cumprod(dim=1)
    stop = torch.cat([torch.ones(count, 1, dtype=accept.dtype), survive], 1)
    stop[:, :-1] -= survive  # chance of exactly n accepted, n = 0..gamma
    visits = torch.zeros(count + gamma + 1, dtype=accept.dtype)
    visits[0] = 1.0
    for anchor in range(count):
        visits[anchor + 1 : anchor + gamma + 2] += visits[anchor] * stop[anchor]
    return visits[:count], survive


@torch.no_grad()
def acceptance(draft: DSparkDraft, target: Target, row: Row, chunk: int = 512) -> Tensor:
    """float64 [A, gamma] for `expected_rounds`, with an anchor at every position of `row.anchors`.

    `p` and `q` are computed in float32 at the row's temperature.
    """
    gamma = draft.shape.block_size
    hidden, last = target.hidden_states([row], draft.shape.target_layer_ids)
    places = torch.arange(row.anchors.start, row.anchors.stop)
    end = len(row.tokens) - 1
    dummy = torch.zeros(end - len(row.p), 1)
    batch = build_batch(
        [row], [RowFeatures(hidden[0, :end], dummy.int(), dummy)], [places], gamma, draft.shape.mask_token_id
    )
    states, latents = (t.float() for t in draft_outputs(draft, target, batch))
    head, w2, vocabulary = draft.lm_head(target.lm_head).float(), draft.markov_head.w2.float(), draft.vocabulary
    temperature = row.T if row.T > 0 else 1.0
    target_row = batch.kept // gamma + batch.slot  # row of `last` (from the first anchor) that predicts the label
    parts = last[0, len(row.p) : end].split(chunk) if row.T > 0 else ()  # at T = 0 only the draft's argmax counts
    log_p = [(target.logits(part).float() / temperature).log_softmax(-1) for part in parts]
    target_log_p = torch.cat(log_p) if log_p else torch.zeros(0)
    drafted = batch.labels if vocabulary is None else vocabulary.index[batch.labels]  # -1: it cannot be
    values = []
    for start in range(0, len(states), chunk):
        rows = slice(start, start + chunk)
        logits = (F.linear(states[rows], head) + F.linear(latents[rows].float(), w2)) / temperature
        labels = drafted[rows]
        if row.T == 0:
            values.append((logits.argmax(-1) == labels).double())
        else:
            log_q = logits.log_softmax(-1).gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1)
            ratio = (log_q - target_log_p[target_row[rows], batch.labels[rows]]).double().exp().clamp_max(1.0)
            values.append(torch.where(labels < 0, 0.0, ratio))
    accept = torch.zeros(len(places) * gamma, dtype=torch.float64)
    accept[batch.kept] = torch.cat(values)
    return accept.view(len(places), gamma)


def draft_outputs(draft: DSparkDraft, target: Target, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states [N, H] at a batch's labelled positions, and the head's latents [N, r] given the tokens before."""
    kind, gamma = draft.fc.weight.dtype, draft.shape.block_size
    where = torch.arange(batch.features.shape[1]).expand(len(batch.features), -1)
    context = draft.context(batch.features.to(kind), where)
    embedded = F.embedding(batch.input_ids, target.embedding).to(kind)
    states = draft.block(embedded, batch.positions, context, batch.mask)
    # By block: the rnn head's state starts anew at each anchor.
    latents = draft.markov_head.latents(batch.previous_by_block(gamma), states.reshape(-1, gamma, states.shape[-1]))
    return states.flatten(0, 1)[batch.kept], latents.flatten(0, 1)[batch.kept]


def evaluate(draft: DSparkDraft, target: Target, rows: Iterable[Row]) -> dict[tuple[str, float], AcceptLength]:
    """Accept length by (domain, temperature)."""
    groups: dict[tuple[str, float], AcceptLength] = defaultdict(AcceptLength)
    for row in rows:
        accept = acceptance(draft, target, row)
        visits, survive = expected_rounds(accept)
        reach = torch.cat([torch.ones(len(survive), 1, dtype=survive.dtype), survive[:, :-1]], 1)
        labelled = (torch.arange(len(accept)).unsqueeze(1) + torch.arange(accept.shape[1])) < len(accept)
        weight = visits.unsqueeze(1) * labelled
        # The first response token comes from the prefill and the rounds produce the others.
        groups[row.d, row.T].add(
            len(row.r) - 1, float(visits.sum()), (reach * weight).sum(0), (survive * weight).sum(0)
        )
    return dict(groups)


def mean_over_domains(groups: dict[tuple[str, float], AcceptLength]) -> dict[float, float]:
    """Unweighted mean of the domains' accept lengths, by temperature."""
    by_temperature: dict[float, list[float]] = defaultdict(list)
    for (_, temperature), length in groups.items():
        by_temperature[temperature].append(length.mean)
    return {t: sum(v) / len(v) for t, v in sorted(by_temperature.items())}
