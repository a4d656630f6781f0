"""Data parallelism: the processes that `torchrun` starts share every step's answers and add their gradients."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """This process among all; alone by default."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other processes if `torchrun` started this one, else be alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every process gets the sum of all processes' gradients."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise over all processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def of_first(self, value: float) -> float:
        """The first process's value."""
        if self.count == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)
