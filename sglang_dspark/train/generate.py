"""Text for training: the target answers prompts itself, greedily and sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sglang_dspark.train.data import Prompt, Row
from sglang_dspark.train.target import Target, import_transformers


def prompt_ids(target: Target, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Token ids of each prompt under the target's chat template, generation prompt included."""
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(target.path)
    result = []
    for prompt in prompts:
        message = [{"role": "user", "content": prompt.prompt}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        result.append(tuple(int(i) for i in ids))
    return result


def generate(
    target: Target,
    prompts: Sequence[Prompt],
    temperature: float,
    max_new_tokens: int,
    seed: int,
    batch_size: int = 64,
    max_prompt_tokens: int = 512,
) -> Iterator[list[Row]]:
    """Answer the prompts batch by batch. A response ends with the target's end token, or at `max_new_tokens`.

    Prompts of similar length share a batch; prompts longer than `max_prompt_tokens` are skipped.
    """
    pairs = zip(prompts, prompt_ids(target, prompts), strict=True)
    tokenized = [(prompt, ids) for prompt, ids in pairs if len(ids) <= max_prompt_tokens]
    tokenized.sort(key=lambda item: len(item[1]))
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, len(tokenized), batch_size):
        batch = tokenized[start : start + batch_size]
        responses = decode(target, [ids for _, ids in batch], temperature, max_new_tokens, generator)
        yield [Row(p.domain, p.id, temperature, ids, r) for (p, ids), r in zip(batch, responses, strict=True)]


@torch.no_grad()
def decode(
    target: Target,
    prompts: Sequence[tuple[int, ...]],
    temperature: float,
    max_new_tokens: int,
    generator: torch.Generator,
) -> list[tuple[int, ...]]:
    """Left-padded batched decoding; finished rows leave the batch."""
    transformers = import_transformers()
    stops = stop_ids(target)
    longest = max(len(ids) for ids in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for index, prompt in enumerate(prompts):
        ids[index, longest - len(prompt) :] = torch.tensor(prompt)
        mask[index, longest - len(prompt) :] = 1
    cache = transformers.DynamicCache(config=target.model.config)
    alive = list(range(len(prompts)))
    responses: list[list[int]] = [[] for _ in prompts]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    for _ in range(max_new_tokens):
        last = target.model.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache
        ).last_hidden_state[:, -1]
        # The model's own lm_head on this strided slice would copy its weight once per row.
        logits = target.logits(last.contiguous())
        tokens = sample(logits, temperature, generator)
        for index, token in zip(alive, tokens.tolist(), strict=True):
            responses[index].append(token)
        going = [i for i, token in enumerate(tokens.tolist()) if token not in stops]
        if not going:
            break
        positions = positions[:, -1:] + 1
        # Dropping rows copies the cache, so only once a fifth of the batch has finished.
        if len(going) <= 0.8 * len(alive):
            kept = torch.tensor(going)
            cache.batch_select_indices(kept)
            tokens, mask, positions = tokens[kept], mask[kept], positions[kept]
            alive = [alive[i] for i in going]
        ids = tokens.unsqueeze(1)
        mask = torch.cat([mask, torch.ones(len(alive), 1, dtype=torch.long)], dim=1)
    return [_until_stop(response, stops) for response in responses]


def sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Draw from `softmax(logits / T)`, or take the argmax at T = 0. logits [R, V] -> int64 [R]."""
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = (logits.float() / temperature).softmax(-1).cumsum(-1)
    # One uniform a row; scaled by the row's own total, which rounding keeps from being exactly 1.
    uniform = torch.rand(len(logits), 1, generator=generator) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, uniform, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)


def stop_ids(target: Target) -> set[int]:
    """Tokens that end an answer, by the target's generation configuration."""
    eos = target.model.generation_config.eos_token_id
    return set(eos) if isinstance(eos, list) else {int(eos)} if eos is not None else set()


def _until_stop(response: list[int], stops: set[int]) -> tuple[int, ...]:
    end = next((i + 1 for i, token in enumerate(response) if token in stops), len(response))
    return tuple(response[:end])
