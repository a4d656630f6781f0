"""The stand-in's functions against straightforward loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dspark.engine.cpu import sgl_kernel_stand_in as kernel


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 9)), max_size=6), st.sampled_from([torch.int32, torch.int64])
)
def test_spans_are_written_and_read_in_order(spans: list[tuple[int, int]], dtype: torch.dtype) -> None:
    rows = torch.randperm(8)[: len(spans)]
    starts = torch.tensor([s for s, _ in spans], dtype=dtype)
    ends = starts + torch.tensor([n for _, n in spans], dtype=dtype)  # a negative length is an empty span
    total = sum(max(n, 0) for _, n in spans)
    slots = torch.randint(1, 1000, (total + 3,))
    table = torch.zeros(8, 40, dtype=torch.int32)
    kernel.assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, 40)
    expected, at = torch.zeros_like(table), 0
    for row, (start, count) in zip(rows.tolist(), spans, strict=True):
        expected[row, start : start + max(count, 0)] = slots[at : at + max(count, 0)].to(torch.int32)
        at += max(count, 0)
    assert torch.equal(table, expected)
    back = torch.full((total + 3,), -5)
    kernel.assign_extend_cache_locs_cpu(rows, table, starts, ends, back, 40)
    assert torch.equal(back[:total], slots[:total])
    assert (back[total:] == -5).all()


def test_draft_locations_and_accept_helpers() -> None:
    table = torch.arange(60, dtype=torch.int32).view(3, 20)
    out = torch.zeros(12, dtype=torch.int64)
    kernel.assign_draft_cache_locs_contiguous_cpu(torch.tensor([2, 0]), table, torch.tensor([5, 7]), out, 20, 2, 3)
    assert out.tolist() == [45, 46, 47, 48, 49, 50, 7, 8, 9, 10, 11, 12]

    bonus = torch.zeros(2, dtype=torch.int64)
    tokens = torch.tensor([[7, 8, 9], [4, 5, 6]], dtype=torch.int32)
    kernel.fill_bonus_tokens_cpu(tokens, torch.tensor([3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [9, 4]

    packed = torch.zeros(4, dtype=torch.int64)
    kernel.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32), torch.tensor([10, 11, 12, 13]), packed
    )
    assert packed.tolist() == [10, 12, 13, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_copy_handles_overlap(dtype: torch.dtype) -> None:
    buffers = [torch.randn(9, 2, 4).to(dtype), torch.randn(9, 3).to(dtype)]
    source, target = torch.tensor([3, 4, 5]), torch.tensor([2, 3, 4])
    expected = [b.clone() for b in buffers]
    for buffer in expected:
        buffer[target] = buffer[source].clone()
    pointers = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
    strides = torch.tensor([b.stride(0) * b.element_size() for b in buffers], dtype=torch.int64)
    kernel.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    for got, want in zip(buffers, expected, strict=True):
        assert torch.equal(got, want)
    kernel.copy_all_layer_kv_cache_cpu(pointers, strides, target[:0], source[:0])


def random_tree(nodes: int, generator: torch.Generator) -> list[int]:
    """Parent of each node; the anchor's is -1."""
    return [-1] + [int(torch.randint(0, i, (1,), generator=generator)) for i in range(1, nodes)]


def mask_of(parents: list[int]) -> torch.Tensor:
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        at = node
        while at != -1:
            mask[node, at] = True
            at = parents[at]
    return mask


def empty_links(batch: int, nodes: int) -> dict[str, torch.Tensor]:
    names = ("positions", "retrive_index", "retrive_next_token", "retrive_next_sibling")
    return {name: torch.full((batch * nodes,), -1, dtype=torch.int64) for name in names}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("nodes", [1, 2, 7, 16])
def test_tree_from_mask_and_its_greedy_walk(seed: int, nodes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    trees = [random_tree(nodes, generator) for _ in range(3)]
    lengths = torch.tensor([5, 0, 31])
    links = empty_links(3, nodes)
    mask = torch.stack([mask_of(tree) for tree in trees])
    kernel.reconstruct_indices_from_tree_mask(mask.flatten(), lengths, **links, batch_size=3, draft_token_num=nodes)
    for b, tree in enumerate(trees):
        part = {name: value.view(3, nodes)[b].tolist() for name, value in links.items()}
        for node in range(nodes):
            children = [c for c in range(nodes) if tree[c] == node]
            siblings = [c for c in range(node + 1, nodes) if tree[node] >= 0 and tree[c] == tree[node]]
            assert part["retrive_next_token"][node] == (children[0] if children else -1)
            assert part["retrive_next_sibling"][node] == (siblings[0] if siblings else -1)
            assert part["positions"][node] == int(lengths[b]) + int(mask[b, node].sum()) - 1
            assert part["retrive_index"][node] == b * nodes + node

    steps = 5
    candidates = torch.randint(0, 3, (3, nodes), generator=generator)
    target = torch.randint(0, 3, (3, nodes), generator=generator)
    predicts = torch.full((3 * nodes,), -1, dtype=torch.int32)
    accept_index = torch.full((3, steps), -1, dtype=torch.int32)
    accepted = torch.zeros(3, dtype=torch.int32)
    shaped: dict[str, Any] = {name: links[name].view(3, nodes) for name in list(links)[1:]}
    kernel.verify_tree_greedy_cpu(predicts, accept_index, accepted, candidates, target_predict=target, **shaped)
    for b, tree in enumerate(trees):
        here, visited = 0, [0]
        for _ in range(steps - 1):
            hits = [c for c in range(nodes) if tree[c] == here and candidates[b, c] == target[b, here]]
            if not hits:
                break
            here = hits[0]
            visited.append(here)
        assert int(accepted[b]) == len(visited) - 1
        assert accept_index[b, : len(visited)].tolist() == [b * nodes + v for v in visited]
        assert (accept_index[b, len(visited) :] == -1).all()
        for v in visited:
            assert int(predicts[b * nodes + v]) == int(target[b, v])


@pytest.mark.parametrize("mode", [0, 1])
def test_eagle_tree_of_two_levels(mode: int) -> None:
    # topk 2: level one drafts 0, 1; level two expands draft 1 into 4, 5 and draft 0 into 2, 3 (order of the beams).
    parents = torch.tensor([[-1, 0, 1]])
    selected = torch.tensor([[0, 1, 2, 5]])  # draft 2 hangs below beam 1 (draft 0), draft 5 below beam 2 (draft 1)
    length, nodes = 3, 5
    links = empty_links(1, nodes)
    mask = torch.ones(nodes * (length + nodes) if mode == 0 else nodes * nodes, dtype=torch.bool)
    kernel.build_tree_kernel_efficient_cpu(
        parents, selected, torch.tensor([length]), mask, **links, topk=2, depth=2, draft_token_num=nodes,
        tree_mask_mode=mode,
    )  # fmt: skip
    tree = mask_of([-1, 0, 0, 1, 2])
    assert torch.equal(mask.view(nodes, -1)[:, -nodes:], tree)
    if mode == 0:
        assert mask.view(nodes, -1)[:, :length].all()
    assert links["positions"].tolist() == [3, 4, 4, 5, 5]
    assert links["retrive_next_token"].tolist() == [1, 3, 4, -1, -1]
    assert links["retrive_next_sibling"].tolist() == [-1, 2, -1, -1, -1]
    with pytest.raises(ValueError, match="tree_mask_mode=2"):
        kernel.build_tree_kernel_efficient_cpu(
            parents, selected, torch.tensor([length]), mask, **links, topk=2, depth=2, draft_token_num=nodes,
            tree_mask_mode=2,
        )  # fmt: skip
