"""A tiny random model behind the real engine, in float32: every token equals Hugging Face's `generate`.

Plain serving, the engine's own DSPARK round (ragged verification, non-causal draft block) and NGRAM (tree masks).
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_process import Answer, Job, run_engine

pytestmark = pytest.mark.engine
transformers = pytest.importorskip("transformers")
pytest.importorskip("sglang")

VOCABULARY, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 128, 96, 6, 2, 16, 192, 3
NEW_TOKENS = 24
TIME_LIMIT = 600.0  # a start takes 15 s on two idle cores; others may be busy on them


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=1024,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        initializer_range=0.2,  # the default of 0.02 makes a random model repeat one token
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("draft")
    rank, layers, target_layers = 16, 2, [0, LAYERS - 2]
    config = {
        "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_size": HIDDEN, "vocab_size": VOCABULARY,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "intermediate_size": INNER, "num_hidden_layers": layers, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 1024, "hidden_act": "silu", "torch_dtype": "float32", "block_size": 4,
        "target_layer_ids": target_layers, "num_target_layers": LAYERS, "mask_token_id": VOCABULARY - 1,
        "markov_rank": rank, "markov_head_type": "vanilla", "enable_confidence_head": True,
        "confidence_head_with_markov": True, "num_anchors": 8,
    }  # fmt: skip
    torch.manual_seed(1)
    heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "fc.weight": (HIDDEN, len(target_layers) * HIDDEN), "markov_head.markov_w1.weight": (VOCABULARY, rank),
        "markov_head.markov_w2.weight": (VOCABULARY, rank), "confidence_head.proj.weight": (1, HIDDEN + rank),
    }  # fmt: skip
    ones = {"norm.weight": HIDDEN, "hidden_norm.weight": HIDDEN}
    for layer in range(layers):
        at = f"layers.{layer}."
        shapes |= {
            f"{at}self_attn.q_proj.weight": (heads, HIDDEN), f"{at}self_attn.k_proj.weight": (kv, HIDDEN),
            f"{at}self_attn.v_proj.weight": (kv, HIDDEN), f"{at}self_attn.o_proj.weight": (HIDDEN, heads),
            f"{at}mlp.gate_proj.weight": (INNER, HIDDEN), f"{at}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": (HIDDEN, INNER),
        }  # fmt: skip
        ones |= {
            f"{at}self_attn.q_norm.weight": HEAD_DIM, f"{at}self_attn.k_norm.weight": HEAD_DIM,
            f"{at}input_layernorm.weight": HIDDEN, f"{at}post_attention_layernorm.weight": HIDDEN,
        }  # fmt: skip
    tensors = {name: torch.randn(shape) * 0.05 for name, shape in shapes.items()}
    tensors |= {name: torch.ones(width) for name, width in ones.items()}
    save_file({**tensors, "confidence_head.proj.bias": torch.zeros(1)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_batches() -> list[list[list[int]]]:
    """Several lengths at once (the longest is prefilled in chunks), then one that shares most of its prompt."""
    random = torch.Generator().manual_seed(3)  # its own: engines are started from several threads
    first = [torch.randint(3, VOCABULARY - 2, (n,), generator=random).tolist() for n in (3, 17, 40, 1, 150, 5)]
    return [first, [[*first[4][:120], 5, 6, 7]], [first[2]]]


@pytest.fixture(scope="module")
def expected(target: Path) -> list[list[list[int]]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    out = []
    for batch in make_batches():
        out.append([])
        for prompt in batch:
            ids = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None,
            )  # fmt: skip
            out[-1].append(ids[0, len(prompt) :].tolist())
    return out


def serve(target: Path, flags: dict[str, Any], **environment: str) -> list[list[Answer]]:
    job = Job(
        flags={"model_path": str(target), "dtype": "float32", "chunked_prefill_size": 64, **flags},
        batches=make_batches(),
        new_tokens=NEW_TOKENS,
        environment=environment,
    )
    return run_engine(job, TIME_LIMIT)


def ids(answers: list[list[Answer]]) -> list[list[list[int]]]:
    return [[answer.output_ids for answer in batch] for batch in answers]


JOBS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "plain": ({}, {}),
    "dspark": (
        {"speculative_algorithm": "DSPARK"},
        {"SGLANG_RAGGED_VERIFY_MODE": "compact", "SGLANG_DSPARK_CONFIG": '{"plugin": "off"}'},
    ),
    "ngram": ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}, {}),
}


@pytest.fixture(scope="module")
def answers(target: Path, draft: Path) -> dict[str, list[list[Answer]]]:
    """Of every engine, two at a time: most of a start runs on one core."""

    def work(name: str) -> list[list[Answer]]:
        flags, environment = JOBS[name]
        if name == "dspark":
            flags = {**flags, "speculative_draft_model_path": str(draft)}
        return serve(target, flags, **environment)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(JOBS, pool.map(work, JOBS), strict=True))


def test_plain(answers: dict[str, list[list[Answer]]], expected: list[list[list[int]]]) -> None:
    _, second, third = answers["plain"]
    assert ids(answers["plain"]) == expected
    assert second[0].meta_info["cached_tokens"] >= 119  # the shared prompt came from the prefix cache
    assert third[0].meta_info["cached_tokens"] >= 39


def test_the_engines_own_dspark_round(answers: dict[str, list[list[Answer]]], expected: list[list[list[int]]]) -> None:
    assert ids(answers["dspark"]) == expected
    assert answers["dspark"][0][4].meta_info["spec_verify_ct"] > 0
    assert answers["dspark"][0][4].meta_info["spec_num_proposed_drafts"] > 0


def test_ngram_trees(answers: dict[str, list[list[Answer]]], expected: list[list[list[int]]]) -> None:
    assert ids(answers["ngram"]) == expected
    # The third prompt repeats the first batch's, which NGRAM then drafts from: some of it must have been accepted.
    assert answers["ngram"][2][0].meta_info["spec_verify_ct"] < NEW_TOKENS - 1


def test_ngram_trees_at_a_temperature(target: Path) -> None:
    """The engine's verification is greedy on a CPU; `tree_verify` repairs it. Ranks among the two best, top-k 2."""
    prompts = [list(range(3, 3 + n)) * 4 for n in range(4, 24)]
    job = Job(
        flags={"model_path": str(target), "dtype": "float32", "speculative_algorithm": "NGRAM",
               "speculative_num_draft_tokens": 8},
        batches=[prompts] * 3,
        new_tokens=NEW_TOKENS,
        sampling={"temperature": 2.0, "top_k": 2},
    )  # fmt: skip
    answers = run_engine(job, TIME_LIMIT)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    first = expected = variance = accepted = 0.0
    for batch in answers:
        for prompt, answer in zip(prompts, batch, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + answer.output_ids])).logits[0, len(prompt) - 1 : -1].double()
            values, best = (logits / 2.0).topk(2)
            p = torch.softmax(values, dim=-1)[:, 0]
            ids = torch.tensor(answer.output_ids)
            assert (ids.unsqueeze(1) == best).any(1).all()
            first += float((ids == best[:, 0]).sum())
            expected += float(p.sum())
            variance += float((p * (1 - p)).sum())
            accepted += NEW_TOKENS - 1 - answer.meta_info["spec_verify_ct"]
    assert accepted > 0
    assert abs(first - expected) < 4 * variance**0.5
    # Always the best one would have been found out.
    assert 3 * NEW_TOKENS * len(prompts) - expected > 8 * variance**0.5
