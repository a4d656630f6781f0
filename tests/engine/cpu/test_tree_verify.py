"""Tree verification at a temperature: what a walk over drawn tokens emits follows the target, exactly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from scipy.stats import chisquare

from sglang_dspark.engine.cpu.sgl_kernel_stand_in.tree import verify_tree_greedy_cpu
from sglang_dspark.engine.cpu.tree_verify import inverse_cdf, target_tokens

V, NODES, ROUNDS = 4, 5, 40_000
# Anchor; below it tokens 1 and 2; below token 1 tokens 0 and 1.
CANDIDATES = [3, 1, 2, 0, 1]
FIRST_CHILD, NEXT_SIBLING = [1, 3, -1, -1, -1], [-1, 2, -1, 4, -1]


def batch_of(count: int, temperature: float, **fields: Any) -> Any:
    info = SimpleNamespace(
        temperatures=torch.full((count, 1), temperature), sampling_seed=None, need_top_k_sampling=False,
        need_top_p_sampling=False, need_min_p_sampling=False, top_ks=torch.full((count,), 1 << 30),
        top_ps=torch.ones(count), min_ps=torch.zeros(count),
    )  # fmt: skip
    for name, value in fields.items():
        setattr(info, name, value)
    return SimpleNamespace(sampling_info=info, seq_lens=torch.full((count,), 9))


def emitted(picks: torch.Tensor) -> list[list[int]]:
    """What each walk emits when the target's tokens are `picks` `[B, n]`."""
    count = len(picks)
    predicts = torch.full((count * NODES,), -1, dtype=torch.int32)
    index = torch.full((count, 3), -1, dtype=torch.int32)
    accepted = torch.zeros(count, dtype=torch.int32)
    candidates = torch.tensor([CANDIDATES] * count)
    offset = torch.arange(count * NODES).view(count, NODES)
    links = [torch.tensor([link] * count) for link in (FIRST_CHILD, NEXT_SIBLING)]
    verify_tree_greedy_cpu(predicts, index, accepted, candidates, offset, *links, picks)
    rows = index.tolist()
    return [[int(predicts[i]) for i in row[: n + 1]] for row, n in zip(rows, accepted.tolist(), strict=True)]


def test_what_is_emitted_follows_the_target_over_a_branching_tree() -> None:
    torch.manual_seed(5)
    # Rows of the tree's nodes; where a path leaves the tree, plain decoding would go on from the same model.
    logits = torch.randn(NODES, V)
    p = torch.softmax(logits.double() / 0.7, dim=-1).numpy()
    candidates = torch.tensor([CANDIDATES] * ROUNDS)
    greedy = logits.argmax(-1).expand(ROUNDS, NODES)
    picks = target_tokens(logits.repeat(ROUNDS, 1), batch_of(ROUNDS, 0.7), candidates, greedy)
    seen: dict[tuple[int, ...], int] = {}
    for tokens in emitted(picks):
        seen[tuple(tokens)] = seen.get(tuple(tokens), 0) + 1
    child = {0: {1: 1, 2: 2}, 1: {0: 3, 1: 4}, 2: {}, 3: {}, 4: {}}
    expected: dict[tuple[int, ...], float] = {}

    def walk(node: int, so_far: tuple[int, ...], probability: float) -> None:
        for token in range(V):
            below = child[node].get(token)
            if below is None:
                expected[(*so_far, token)] = probability * p[node, token]
            else:
                walk(below, (*so_far, token), probability * p[node, token])

    walk(0, (), 1.0)
    assert abs(sum(expected.values()) - 1) < 1e-12
    assert set(seen) <= set(expected)
    outcomes = list(expected)
    result = chisquare([seen.get(o, 0) for o in outcomes], [expected[o] * ROUNDS for o in outcomes])
    assert result.pvalue > 1e-4
    # Argmax, which the engine commits on a CPU by itself, is far from it.
    assert max(seen.values()) < 0.9 * ROUNDS


def test_greedy_requests_keep_argmax_and_filters_hold() -> None:
    torch.manual_seed(1)
    count, logits = 600, torch.randn(600 * NODES, V)
    greedy = logits.argmax(-1).view(count, NODES)
    top_ks = torch.where(torch.arange(count) % 2 == 0, 1, 2)
    batch = batch_of(count, 1.0, need_top_k_sampling=True, top_ks=top_ks)
    picks = target_tokens(logits, batch, torch.tensor([CANDIDATES] * count), greedy)
    assert torch.equal(picks[::2], greedy[::2])
    assert not torch.equal(picks[1::2], greedy[1::2])
    best = logits.view(count, NODES, V).topk(2).indices
    assert (picks.unsqueeze(-1) == best).any(-1).all()


def test_draws_never_have_probability_zero() -> None:
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(5, 1)
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0 - 2**-24])
    assert inverse_cdf(p, uniform).tolist() == [1, 1, 3, 3, 3]
    tiny = torch.full((1, 49_152), 2.0**-16)
    tiny[0, 49_000:] = 0
    assert inverse_cdf(tiny, torch.tensor([1.0 - 2**-24])).item() == 48_999
