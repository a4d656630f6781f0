"""The draft-verify loop itself, in plain torch, one request at a time: slow, and the check of everything faster.

Follows `algorithm.md`, section 1, with all gamma positions verified: draft, verify, accept, commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_dspark.model.draft import ContextKV, DSparkDraft
from sglang_dspark.train.data import Row
from sglang_dspark.train.evaluate import AcceptLength
from sglang_dspark.train.generate import stop_ids
from sglang_dspark.train.target import Target, import_transformers


def decode_rows(
    draft: DSparkDraft, target: Target, rows: Iterable[Row], max_new_tokens: int, seed: int
) -> dict[tuple[str, float], AcceptLength]:
    """Answer the rows' prompts at their temperatures; accept length by (domain, temperature)."""
    from tqdm import tqdm

    groups: dict[tuple[str, float], AcceptLength] = defaultdict(AcceptLength)
    generator = torch.Generator().manual_seed(seed)
    for row in tqdm(list(rows), unit="answer"):
        tokens, accepted = decode(draft, target, row.p, row.T, max_new_tokens, generator)
        counts = torch.tensor(accepted)
        places = torch.arange(draft.shape.block_size)
        reached = (counts.unsqueeze(1) >= places).double().sum(0)
        passed = (counts.unsqueeze(1) > places).double().sum(0)
        groups[row.d, row.T].add(len(tokens) - 1, len(accepted), reached, passed)
    return dict(groups)


@torch.no_grad()
def decode(
    draft: DSparkDraft,
    target: Target,
    prompt: tuple[int, ...],
    temperature: float,
    max_new_tokens: int,
    generator: torch.Generator,
) -> tuple[list[int], list[int]]:
    """Decode one prompt.

    Returns:
        The tokens emitted (the first one by the prefill), and for each round how many draft tokens were accepted.
    """
    stops = stop_ids(target)
    cache = import_transformers().DynamicCache(config=target.model.config)
    logits, features = _target_forward(draft, target, list(prompt), cache)
    context = draft.context(features, torch.arange(len(prompt)).unsqueeze(0))
    tokens = [_draw(distribution(logits[-1:], temperature), generator)]
    accepted = []
    while len(tokens) < max_new_tokens and tokens[-1] not in stops:
        anchor = len(prompt) + len(tokens) - 1
        drafted, q = draft_block(draft, target, tokens[-1], anchor, context, temperature, generator)
        logits, features = _target_forward(draft, target, [tokens[-1], *drafted], cache)
        p = distribution(logits, temperature)
        count, last = accept(p, q, drafted, generator)
        cache.crop(anchor + count + 1)
        positions = torch.arange(anchor, anchor + count + 1).unsqueeze(0)
        fresh = draft.context(features[:, : count + 1], positions)
        pairs = zip(context, fresh, strict=True)
        context = [(torch.cat([k, new_k], 1), torch.cat([v, new_v], 1)) for (k, v), (new_k, new_v) in pairs]
        emitted = _until([*drafted[:count], last], stops, max_new_tokens - len(tokens))
        tokens += emitted
        accepted.append(min(count, len(emitted)))
    return tokens, accepted


def draft_block(
    draft: DSparkDraft,
    target: Target,
    anchor_token: int,
    anchor: int,
    context: ContextKV,
    temperature: float,
    generator: torch.Generator,
) -> tuple[list[int], Tensor]:
    """One block: gamma drafted tokens, and the distributions q [gamma, V] they were drawn from."""
    gamma = draft.shape.block_size
    ids = torch.full((1, gamma), draft.shape.mask_token_id)
    ids[0, 0] = anchor_token
    positions = torch.arange(anchor, anchor + gamma).unsqueeze(0)
    embedded = F.embedding(ids, target.embedding).to(draft.fc.weight.dtype)
    hidden = draft.block(embedded, positions, context, None)[0]
    base = F.linear(hidden.to(target.lm_head.dtype), draft.lm_head(target.lm_head)).float()
    vocabulary = draft.vocabulary
    tokens, rows, state = [], [], None
    previous = torch.tensor([anchor_token])
    for k in range(gamma):
        latents, state = draft.markov_head.step(previous, hidden[k : k + 1], state)
        q = distribution(base[k : k + 1] + draft.markov_head.bias(latents).float(), temperature)
        if vocabulary is not None:
            q = vocabulary.expand(q.T).T
        tokens.append(_draw(q, generator))
        rows.append(q)
        previous = torch.tensor([tokens[-1]])
    return tokens, torch.cat(rows)


def accept(p: Tensor, q: Tensor, drafted: list[int], generator: torch.Generator) -> tuple[int, int]:
    """Rejection test of a block.

    Args:
        p: [gamma + 1, V], the target's distributions; q: [gamma, V], the draft's.

    Returns:
        How many drafted tokens are accepted, and the token that ends the round.
    """
    for k, token in enumerate(drafted):
        uniform = float(torch.rand((), generator=generator))
        if uniform * float(q[k, token]) >= float(p[k, token]):
            return k, _draw((p[k] - q[k]).clamp_min(0).unsqueeze(0), generator)
    return len(drafted), _draw(p[len(drafted)].unsqueeze(0), generator)


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """float32 probabilities [R, V]; at T = 0 all mass is on the argmax."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits.float() / temperature).softmax(-1)


def _draw(weights: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(weights, 1, generator=generator))


def _target_forward(draft: DSparkDraft, target: Target, tokens: list[int], cache: Any) -> tuple[Tensor, Tensor]:
    """Logits [Q, V] and features [1, Q, K*H] of `tokens` behind what `cache` holds (which they are added to)."""
    output = target.model(input_ids=torch.tensor([tokens]), past_key_values=cache, output_hidden_states=True)
    layers = [output.hidden_states[i + 1] for i in draft.shape.target_layer_ids]
    return output.logits[0], torch.cat(layers, dim=-1).to(draft.fc.weight.dtype)


def _until(tokens: list[int], stops: set[int], room: int) -> list[int]:
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[: min(end, room)]
