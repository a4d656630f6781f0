"""The torch versions of Triton kernels, against loops that follow the kernels line by line."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.engine.cpu.patches import chain_speculative_sampling, table_qk_norm_rope
from sglang_dspark.errors import ConfigError


def chain_inputs(batch: int, nodes: int, vocabulary: int, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "predicts": torch.full((batch * nodes,), -1, dtype=torch.int32),
        "accept_index": torch.full((batch, nodes), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(batch, dtype=torch.int32),
        "candidates": torch.randint(0, vocabulary, (batch, nodes)),
        "retrive_index": torch.arange(batch * nodes).view(batch, nodes),
        "retrive_next_token": torch.zeros(batch, nodes, dtype=torch.int64),
        "retrive_next_sibling": torch.zeros(batch, nodes, dtype=torch.int64),
        "uniform_samples": torch.rand(batch, nodes - 1),
        "uniform_samples_for_final_sampling": torch.rand(batch),
        "target_probs": torch.softmax(torch.randn(batch, nodes, vocabulary), -1),
        "draft_probs": torch.softmax(torch.randn(batch, nodes - 1, vocabulary), -1),
    }


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("batch", "nodes"), [(1, 2), (5, 4), (16, 8)])
def test_chain_sampling(batch: int, nodes: int, seed: int) -> None:
    given = chain_inputs(batch, nodes, 6, seed)
    if seed == 0:
        given["draft_probs"][0, 0] = float("nan")  # never accepted, and no part of the residual
    chain_speculative_sampling(**given)
    for b in range(batch):
        count = 0
        while count < nodes - 1:
            token = given["candidates"][b, count + 1]
            p, q = given["target_probs"][b, count, token], given["draft_probs"][b, count, token]
            if not (0 < q <= 1 and given["uniform_samples"][b, count] * q < p):
                break
            assert given["predicts"][b * nodes + count] == token
            count += 1
        weights = given["target_probs"][b, count].clone()
        if count < nodes - 1:
            against = given["draft_probs"][b, count]
            weights = (weights - torch.where((against >= 0) & (against <= 1), against, 0.0)).clamp_min(0)
        cumulative = weights.cumsum(0)
        threshold = given["uniform_samples_for_final_sampling"][b] * cumulative[-1]
        final = next((i for i in range(6) if cumulative[i] > threshold), 5)
        assert int(given["accept_token_num"][b]) == count
        assert given["accept_index"][b].tolist() == [b * nodes + i if i <= count else -1 for i in range(nodes)]
        assert int(given["predicts"][b * nodes + count]) == final


def test_chain_sampling_draws_from_the_target() -> None:
    torch.manual_seed(0)
    given = chain_inputs(40_000, 2, 3, 0)
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.7])
    given["target_probs"][:], given["draft_probs"][:] = p, q
    given["candidates"][:, 1] = torch.multinomial(q, 40_000, replacement=True)
    chain_speculative_sampling(**given)
    share = torch.bincount(given["predicts"].view(-1, 2)[:, 0].long(), minlength=3) / 40_000
    assert (share - p).abs().max() < 0.01  # four standard deviations


def test_block_verification_is_refused() -> None:
    with pytest.raises(ConfigError, match="--speculative-use-block-verification"):
        chain_speculative_sampling(**chain_inputs(1, 2, 3, 0), block_verification=True)


def test_table_qk_norm_rope_writes_queries_and_keys_only() -> None:
    torch.manual_seed(0)
    rows, heads, kv_heads, dim = 5, 4, 2, 16
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * dim).bfloat16()
    angle = torch.rand(30, dim // 2) * 6
    table, positions = torch.cat([angle.cos(), angle.sin()], dim=1), torch.randint(0, 30, (rows,))
    weights = torch.rand(2, dim).bfloat16()
    before = qkv.clone()
    table_qk_norm_rope(qkv, positions, weights[0], weights[1], table, heads, kv_heads, dim, 1e-6)
    for head in range(heads + kv_heads):
        x = before[:, head * dim : (head + 1) * dim].double()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weights[int(head >= heads)].double()
        a, b = x.chunk(2, dim=-1)
        cos, sin = table[positions].double().chunk(2, dim=-1)
        expected = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        got = qkv[:, head * dim : (head + 1) * dim].double()
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(qkv[:, (heads + kv_heads) * dim :], before[:, (heads + kv_heads) * dim :])
