"""Slots and pages of the KV pools under speculation, target's and draft's, with every empty slot poisoned.

The tiny pair of the live tests, greedy: every token equals Hugging Face's `generate`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_process import Answer, Job, run_engine
from kv_watch import WATCH, notes

pytestmark = pytest.mark.engine
transformers = pytest.importorskip("transformers")

PAIR = Path(__file__).parents[1] / "exactness" / "live" / "pair"
NEW_TOKENS, TIME_LIMIT = 24, 600.0
# Page size and draft tokens verified, of 4: γ + 1 queries a round, or γ.
SERVERS = {"16, γ + 1": (16, None), "16, γ": (16, 3), "1, γ + 1": (1, None)}
POOL = 768  # fewer tokens than the last batch needs at once: what was cached or finished is freed for it


def prompts() -> list[list[list[int]]]:
    """A prefix alone; six lengths of 10 to 15 modulo 16 that share it, twice; two turns more; more than fits."""
    generator = torch.Generator().manual_seed(4)

    def letters(count: int) -> list[int]:
        return torch.randint(3, 16, (count,), generator=generator).tolist()

    prefix = [1, *letters(31)]
    six = [[*prefix, *letters(tail)] for tail in range(10, 16)]
    return [[[*prefix, 5]], six, six, [[1, *letters(39)] for _ in range(16)]]


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, ...], list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32).eval()

    def answer(prompt: list[int]) -> list[int]:
        ids = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None,
        )  # fmt: skip
        return ids[0, len(prompt) :].tolist()

    first = {tuple(prompt): answer(prompt) for batch in prompts() for prompt in batch}
    turns = next_turns(first)
    return first | {tuple(prompt): answer(prompt) for prompt in turns}


def next_turns(answers: dict[tuple[int, ...], list[int]]) -> list[list[int]]:
    """Prompts that go on from the answers to the six: pages that the engine filled while it decoded are shared."""
    return [[*prompt, *answers[tuple(prompt)], 3 + i, 7] for i, prompt in enumerate(prompts()[1])]


@pytest.fixture(scope="module")
def served(
    expected: dict[tuple[int, ...], list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[list[Answer]], dict[str, int]]]:
    """Answers of every server, and what the watch noted."""
    folder = tmp_path_factory.mktemp("watch")

    def serve(name: str) -> tuple[list[list[Answer]], dict[str, int]]:
        page_size, verify_length = SERVERS[name]
        watch = folder / f"{page_size}-{verify_length}"
        flags: dict[str, Any] = {
            "model_path": str(PAIR / "target"), "speculative_draft_model_path": str(PAIR / "draft"), "dtype": "float32",
            "speculative_algorithm": "DSPARK", "page_size": page_size, "max_total_tokens": POOL,
            "disable_overlap_schedule": True,
        }  # fmt: skip
        settings = json.dumps({"verify_length": verify_length, "overlap": "off"})
        environment = {"SGLANG_DSPARK_CONFIG": settings, "OMP_NUM_THREADS": "1", WATCH: str(watch)}
        return run_engine(Job(flags, batches(expected), NEW_TOKENS, environment), TIME_LIMIT), notes(watch)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SERVERS, pool.map(serve, SERVERS), strict=True))


def batches(expected: dict[tuple[int, ...], list[int]]) -> list[list[list[int]]]:
    *shared, many = prompts()
    turns = next_turns(expected)
    return [*shared, turns, turns, many, prompts()[1]]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.known_case(9, 10, 19)
def test_every_token_is_right_and_no_empty_slot_is_read(
    server: str,
    served: dict[str, tuple[list[list[Answer]], dict[str, int]]],
    expected: dict[tuple[int, ...], list[int]],
) -> None:
    answers, _ = served[server]
    for batch, found in zip(batches(expected), answers, strict=True):
        assert [answer.output_ids for answer in found] == [expected[tuple(prompt)] for prompt in batch]
        assert all(answer.meta_info["spec_num_proposed_drafts"] > 0 for answer in found)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.known_case(9, 10)
def test_most_of_the_prompts_came_from_the_cache_unchanged(
    server: str,
    served: dict[str, tuple[list[list[Answer]], dict[str, int]]],
    expected: dict[tuple[int, ...], list[int]],
) -> None:
    answers, noted = served[server]
    for index in (1, 2, 3, 4):
        for prompt, answer in zip(batches(expected)[index], answers[index], strict=True):
            assert answer.meta_info["cached_tokens"] >= (32 if index < 3 else 0.8 * (len(prompt) - 1) - 16)
    assert noted["compared"] > 10 * 32  # slots of shared prefixes, bit by bit
    assert noted["poisoned"] > POOL  # freed slots, some more than once
