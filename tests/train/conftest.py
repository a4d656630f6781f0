"""A tiny target and text for the training tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sglang_dspark.model.draft import DraftShape
from sglang_dspark.train.data import Row
from sglang_dspark.train.target import Target, import_transformers

VOCAB, HIDDEN, LAYERS = 48, 16, 4


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = import_transformers()
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,  # a random model with a strong opinion, so that there is something to learn
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def target(tiny_folder: Path) -> Target:
    return Target(tiny_folder, torch.float32)


@pytest.fixture(scope="session")
def rows(target: Target) -> list[Row]:
    """24 answers at T = 0 and 1, in two domains."""
    from sglang_dspark.train.generate import decode

    generator = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(3, VOCAB, (3 + i % 5,), generator=generator).tolist()) for i in range(12)]
    result = []
    for temperature in (0.0, 1.0):
        for index, response in enumerate(decode(target, prompts, temperature, 24, generator)):
            result.append(Row("math" if index % 3 else "chat", f"p{index}", temperature, prompts[index], response))
    return result


@pytest.fixture(scope="session")
def shape() -> DraftShape:
    return DraftShape(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=32,
        block_size=3,
        target_layer_ids=(0, 1, 2),
        mask_token_id=0,
        markov_rank=8,
        rope_theta=10000.0,
    )
