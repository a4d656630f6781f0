"""Drafts that propose a part of the vocabulary only, behind the real engine: greedy text is plain decoding's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from engine_process import Job, run_engine

from sglang_dspark.model.draft import DraftShape
from sglang_dspark.model.draft_vocabulary import DraftVocabulary
from sglang_dspark.train.export import export
from sglang_dspark.train.initialise import from_target
from sglang_dspark.train.target import Target, import_transformers

pytestmark = pytest.mark.engine

VOCABULARY, NEW_TOKENS, TIME_LIMIT = 96, 24, 600.0
PROMPTS = [[5, 9, 11], [7, 3, 30, 21, 40, 8, 60], [41] * 12]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    transformers = import_transformers()
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return Target(folder, torch.float32)


def make_draft(target: Target, head: str, folder: Path) -> Path:
    """An untrained draft, started from the target's own last layer, that can propose every second token."""
    vocabulary = DraftVocabulary(torch.arange(1, VOCABULARY, 2), VOCABULARY)
    shape = DraftShape(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=96, block_size=3, target_layer_ids=(0, 1), mask_token_id=0, markov_rank=8,
        markov_head_type=head, rope_theta=10000.0, draft_vocab_size=len(vocabulary.ids),
    )  # fmt: skip
    draft = from_target(shape, target, 0, vocabulary)
    draft.markov_head.w2.data.normal_(std=0.3)
    export(draft.state_dict(), shape, target.config, folder, torch.float32)
    return folder


@pytest.mark.parametrize("support", [256, 8], ids=["all of it", "eight candidates"])
def test_greedy_text_is_plain_decodings(target: Target, tmp_path: Path, support: int) -> None:
    flags = {"model_path": str(target.path), "dtype": "float32"}
    drafted = {"speculative_algorithm": "DSPARK", "disable_overlap_schedule": True}
    jobs = [Job(flags, [PROMPTS], NEW_TOKENS)]
    for head in ("vanilla", "rnn"):
        path = str(make_draft(target, head, tmp_path / head))
        settings = {"SGLANG_DSPARK_CONFIG": f'{{"policy": "fixed", "support": {support}}}'}
        jobs.append(Job({**flags, **drafted, "speculative_draft_model_path": path}, [PROMPTS], NEW_TOKENS, settings))
    with ThreadPoolExecutor(len(jobs)) as pool:
        plain, *others = pool.map(lambda job: run_engine(job, TIME_LIMIT)[0], jobs)
    expected = [answer.output_ids for answer in plain]
    for answers in others:
        assert [answer.output_ids for answer in answers] == expected
        # Half of the tokens can be proposed, and the draft starts as the target's own last layer.
        assert sum(answer.meta_info["spec_num_correct_drafts"] for answer in answers) > 0
        assert all(answer.meta_info["spec_num_proposed_drafts"] > 0 for answer in answers)
