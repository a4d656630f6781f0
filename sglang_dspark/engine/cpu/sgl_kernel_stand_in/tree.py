"""Draft trees: build, rebuild from a mask, and walk greedily. All arguments are CPU tensors, written in place.

A tree has `n` nodes per request; node 0 is the anchor. `next_token[i]` is node i's first child and `next_sibling[i]`
the next node with the same parent, -1 where there is none.
"""

import numpy as np
import numpy.typing as npt
from torch import Tensor

Ints = npt.NDArray[np.int64]

_FULL_MASK, _QLEN_ONLY = 0, 1  # sglang TreeMaskMode


def _links(parent: Ints) -> tuple[Ints, Ints]:
    """First child and next sibling of every node, from `parent [B, n]` (-1: no parent). Children come later."""
    nodes = parent.shape[1]
    node = np.arange(nodes)
    child = parent[:, None, :] == node[None, :, None]  # [B, i, k]: k is a child of i
    later = (parent[:, None, :] == parent[:, :, None]) & (node[None, :] > node[:, None]) & (parent >= 0)[:, :, None]
    first_child = np.where(child.any(-1), child.argmax(-1), -1)
    next_sibling = np.where(later.any(-1), later.argmax(-1), -1)
    return first_child, next_sibling


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn EAGLE's selected drafts into a tree: mask, positions and links.

    Args:
        parent_list: `[B, *]` index of the draft that each expanded beam came from.
        selected_index: `[B, n - 1]` chosen drafts; draft d hangs below `parent_list[d // topk]`, or the anchor.
        verified_seq_len: `[B]` tokens before the anchor.
        tree_mask: flat; `[B, n, n]` (QLEN_ONLY), or per request `[n, len + n]` with the prefix already filled
            (FULL_MASK).

    Raises:
        ValueError: for the bit-packed mask, which no CPU path reads.
    """
    batch, nodes = verified_seq_len.numel(), draft_token_num
    if tree_mask_mode not in (_FULL_MASK, _QLEN_ONLY):
        raise ValueError(f"tree_mask_mode={tree_mask_mode} (bit-packed) is not supported on a CPU; use QLEN_ONLY")
    selected = selected_index.reshape(batch, -1).numpy().astype(np.int64, copy=False)
    beams = parent_list.reshape(batch, -1).numpy().astype(np.int64, copy=False)
    lengths = verified_seq_len.numpy().astype(np.int64, copy=False)

    beam = selected // topk
    wanted = np.take_along_axis(beams, beam, axis=1) if beams.size else np.zeros_like(beam)
    match = selected[:, None, :] == wanted[:, :, None]
    found = np.where(match.any(-1), match.argmax(-1) + 1, -1)
    parent = np.full((batch, nodes), -1, dtype=np.int64)
    parent[:, 1:] = np.where(beam == 0, 0, found)

    row, node = np.arange(batch)[:, None], np.arange(nodes)[None, :]
    visible = np.zeros((batch, nodes, nodes), dtype=bool)
    visible[:, :, 0] = True
    level = np.zeros((batch, nodes), dtype=np.int64)
    at = np.broadcast_to(node, (batch, nodes)).copy()
    for _ in range(depth):
        climbing = at > 0
        visible[row, node, np.maximum(at, 0)] |= climbing
        level += climbing
        at = np.where(climbing, parent[row, np.maximum(at, 0)], at)

    first_child, next_sibling = _links(parent)
    positions.view(batch, nodes).numpy()[:] = lengths[:, None] + level
    retrive_index.view(batch, nodes).numpy()[:] = row * nodes + node
    retrive_next_token.view(batch, nodes).numpy()[:] = first_child
    retrive_next_sibling.view(batch, nodes).numpy()[:] = next_sibling
    mask = tree_mask.view(-1).numpy()
    if tree_mask_mode == _QLEN_ONLY:
        mask[: visible.size] = visible.reshape(-1)
        return
    start = 0
    for index, length in enumerate(lengths.tolist()):
        width = length + nodes
        mask[start : start + nodes * width].reshape(nodes, width)[:, length:] = visible[index]
        start += nodes * width


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links of a tree given as its mask: `tree_mask[b, i, j]` says that j is i or an ancestor of i."""
    nodes = draft_token_num
    node = np.arange(nodes)
    mask = tree_mask.reshape(-1)[: batch_size * nodes * nodes].view(batch_size, nodes, nodes).numpy().astype(bool)
    ancestors = mask & (node[None, :] < node[:, None])
    parent = np.where(ancestors, node, -1).max(-1)
    first_child, next_sibling = _links(parent)
    lengths = verified_seq_len.numpy().astype(np.int64, copy=False)
    positions.view(batch_size, nodes).numpy()[:] = lengths[:, None] + ancestors.sum(-1)
    retrive_index.view(batch_size, nodes).numpy()[:] = np.arange(batch_size)[:, None] * nodes + node
    retrive_next_token.view(batch_size, nodes).numpy()[:] = first_child
    retrive_next_sibling.view(batch_size, nodes).numpy()[:] = next_sibling


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its anchor, each time to the child that is the target's own pick, until there is none.

    Args:
        predicts: flat `[B * n]`, receives the target's token at each visited node.
        accept_index: `[B, steps]`, receives the flat index of each visited node, anchor first.
        accept_token_num: `[B]`, receives the number of accepted drafts.
        candidates, retrive_*: `[B, n]`.
        target_predict: `[B, n]` or flat.
    """
    batch, nodes = candidates.shape
    drafts, flat_index = candidates.numpy(), retrive_index.view(batch, nodes).numpy()
    child, sibling = retrive_next_token.view(batch, nodes).numpy(), retrive_next_sibling.view(batch, nodes).numpy()
    picks, output = target_predict.reshape(-1).numpy(), predicts.view(-1).numpy()
    index, count = accept_index.numpy(), np.zeros(batch, dtype=np.int64)
    row = np.arange(batch)
    here = np.zeros(batch, dtype=np.int64)
    last = flat_index[:, 0].astype(np.int64)
    index[:, 0] = last
    walking = np.ones(batch, dtype=bool)
    for _ in range(1, index.shape[1]):
        here = np.where(walking, child[row, here], here)
        searching, matched = walking & (here != -1), np.zeros(batch, dtype=bool)
        while searching.any():
            safe = np.maximum(here, 0)
            hit = searching & (drafts[row, safe] == picks[last])
            matched |= hit
            here = np.where(searching & ~hit, sibling[row, safe], here)
            searching &= ~hit & (here != -1)
        walking = matched
        if not walking.any():
            break
        output[last[walking]] = picks[last[walking]]
        count += walking
        last = np.where(walking, flat_index[row, np.maximum(here, 0)], last)
        index[row[walking], count[walking]] = last[walking]
        here = np.where(walking, here, 0)
    accept_token_num.numpy()[:] = count
    output[last] = picks[last]
