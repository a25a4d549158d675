"""Communication between the processes that train one model: sums, and decisions that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


class Ranks(Protocol):
    """The processes of one worker group, numbered from 0. Every rank makes the same calls in the same order."""

    @property
    def size(self) -> int: ...

    @property
    def rank(self) -> int:
        """The number of this process."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks of tensors of one shape and dtype, equal on every rank."""
        ...

    def gather(self, value: Value) -> Sequence[Value]:
        """The values of all ranks, which are small and picklable, in rank order."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        ...

    def barrier(self) -> None:
        """Wait until every rank has made this call."""
        ...


class Solo:
    """One process by itself."""

    size = 1
    rank = 0

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, value: Value) -> Sequence[Value]:
        return (value,)

    def any(self, flag: bool) -> bool:
        return flag

    def barrier(self) -> None:
        pass


class ProcessGroupRanks:
    """The ranks of an initialized `torch.distributed` process group: gloo on CPUs, NCCL on GPUs."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`None` is the default group."""
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def sum(self, values: Tensor) -> Tensor:
        total = values.detach().to(self._device, copy=True)
        dist.all_reduce(total, group=self.group)
        return total.to(values.device)

    def gather(self, value: Value) -> Sequence[Value]:
        values: list[Value | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values  # type: ignore[return-value]

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor([int(flag)])))

    def barrier(self) -> None:
        dist.barrier(group=self.group)
