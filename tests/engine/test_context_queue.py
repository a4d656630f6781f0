from __future__ import annotations

import torch

from sglang_dspark.engine.context_queue import ContextQueue


class Pool:
    """A draft KV pool of one number a slot."""

    def __init__(self) -> None:
        self.value, self.writes = torch.zeros(100), 0

    def write(self, hidden: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        assert len(hidden) == len(slots) == len(positions)
        assert len(slots.unique()) == len(slots), "one write may not meet a slot twice"
        self.value[slots] = hidden[:, 0] + positions
        self.writes += 1


def states(value: float, slots: list[int], position: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.full((len(slots), 3), value), torch.tensor(slots), torch.full((len(slots),), position)


def test_many_rounds_are_written_at_once() -> None:
    pool, requests = Pool(), [object(), object()]
    queue = ContextQueue(pool.write)
    for round_ in range(5):
        queue.put(requests, *states(0.5, [round_, 50 + round_], round_))
    assert pool.writes == 0
    queue.flush()
    queue.flush()
    assert pool.writes == 1
    assert pool.value[:5].tolist() == pool.value[50:55].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_states_are_copied() -> None:
    pool, requests = Pool(), [object()]
    queue = ContextQueue(pool.write)
    hidden, slots, positions = states(1.0, [3], 0)
    queue.put(requests, hidden, slots, positions)
    hidden.fill_(9.0)
    slots.fill_(4)
    queue.flush()
    assert pool.value[3] == 1.0
    assert pool.value[4] == 0.0


def test_a_slot_that_changes_hands_keeps_its_new_owner_s_state() -> None:
    pool, old, stays, new = Pool(), object(), object(), object()
    queue = ContextQueue(pool.write)
    queue.put([old, stays], *states(1.0, [7, 8], 0))
    # `old` ended, its slot was given to `new`, which is as many requests as before.
    queue.put([new, stays], *states(2.0, [7, 9], 0))
    queue.flush()
    assert pool.value[[7, 8, 9]].tolist() == [2.0, 1.0, 2.0]


def test_no_more_than_a_bound_is_kept() -> None:
    pool, requests = Pool(), [object()]
    queue = ContextQueue(pool.write, most_tokens=4)
    for round_ in range(9):
        queue.put(requests, *states(1.0, [round_], 0))
    assert pool.writes == 2
    at_once = ContextQueue(pool.write, most_tokens=0)
    at_once.put(requests, *states(1.0, [20], 0))
    assert pool.writes == 3
