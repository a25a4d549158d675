"""Communication between the processes that train one model: sums, and decisions that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

Value = TypeVar("Value")
Counter = Callable[[int], int]
"gives the caller the next `n` numbers, from 0 on, and returns the first of them"


class Ranks(Protocol):
    """The processes of one worker group, which make the same calls in the same order.

    A rank is one process, or those that compute each layer together and have the same rows.
    """

    @property
    def size(self) -> int:
        """The number of ranks, among which rows are divided."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        ...

    @property
    def num_processes(self) -> int: ...

    @property
    def process(self) -> int:
        """The number of this process, from 0. Process 0 writes what all hold."""
        ...

    @property
    def group(self) -> dist.ProcessGroup | None:
        """All processes; None is the default group."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks of tensors of one shape and dtype, equal on every rank."""
        ...

    def gather(self, value: Value) -> Sequence[Value]:
        """The values of all processes, which are small and picklable, in their order."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one process."""
        ...

    def barrier(self) -> None:
        """Wait until every process has made this call."""
        ...

    def counter(self, name: str) -> Counter:
        """The counter of this name, which all ranks share."""
        ...


class Solo:
    """One process by itself."""

    size = num_processes = 1
    rank = process = 0
    group = None

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, value: Value) -> Sequence[Value]:
        return (value,)

    def any(self, flag: bool) -> bool:
        return flag

    def barrier(self) -> None:
        pass

    def counter(self, name: str) -> Counter:
        del name
        return own_counter()


class ProcessGroupRanks:
    """The ranks of an initialized `torch.distributed` process group: gloo on CPUs, NCCL on GPUs."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`None` is the default group."""
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.waiting: str | None = None
        "the collective that this rank is in"
        on_gpu = "nccl" in dist.get_backend_config(group)
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    @property
    def num_processes(self) -> int:
        return self.size

    @property
    def process(self) -> int:
        return self.rank

    def abort(self) -> None:
        """Release this rank from a collective on GPUs whose other ranks do not come; gloo on CPUs does so by itself."""
        if self._device.type == "cuda":
            group = self.group or dist.group.WORLD
            assert group is not None
            group._get_backend(self._device).abort()

    def leave(self) -> None:
        """Go on alone, after other ranks have ended. A weight of which they hold shards is lost."""
        self.size, self.rank = 1, 0

    @contextmanager
    def _in(self, collective: str) -> Iterator[None]:
        self.waiting = collective
        yield
        self.waiting = None

    def sum(self, values: Tensor) -> Tensor:
        if self.size == 1:
            return values
        total = values.detach().to(self._device, copy=True)
        with self._in("all_reduce"):
            dist.all_reduce(total, group=self.group)
        return total.to(values.device)

    def gather(self, value: Value) -> Sequence[Value]:
        values: list[Value | None] = [None] * self.size
        if self.size == 1:
            return (value,)
        with self._in("all_gather"):
            dist.all_gather_object(values, value, group=self.group)
        return values  # type: ignore[return-value]

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor([int(flag)])))

    def barrier(self) -> None:
        if self.size > 1:
            with self._in("barrier"):
                dist.barrier(group=self.group)

    def counter(self, name: str) -> Counter:
        if self.size == 1:
            return own_counter()
        store, key = _get_default_store(), f"counter {name} of {dist.get_process_group_ranks(self.group)}"
        return lambda count: int(store.add(key, count)) - count


def own_counter() -> Counter:
    """A counter of this process."""
    given = 0

    def take(count: int) -> int:
        nonlocal given
        given += count
        return given - count

    return take


class TensorRanks:
    """Ranks of `width` neighbouring processes each, which compute every layer together."""

    def __init__(self, processes: Ranks, width: int) -> None:
        self._processes = processes
        self._width = width

    @property
    def size(self) -> int:
        return -(-self.num_processes // self._width)

    @property
    def rank(self) -> int:
        return self.process // self._width

    @property
    def num_processes(self) -> int:
        return self._processes.num_processes

    @property
    def process(self) -> int:
        return self._processes.process

    @property
    def group(self) -> dist.ProcessGroup | None:
        return self._processes.group

    def sum(self, values: Tensor) -> Tensor:
        return self._processes.sum(values if self.process % self._width == 0 else torch.zeros_like(values))

    def gather(self, value: Value) -> Sequence[Value]:
        return self._processes.gather(value)

    def any(self, flag: bool) -> bool:
        return self._processes.any(flag)

    def barrier(self) -> None:
        self._processes.barrier()

    def counter(self, name: str) -> Counter:
        return self._processes.counter(name)


def inside(ranks: Ranks) -> Ranks:
    """The processes of one rank, on the CPU; all processes of `ranks` make this call."""
    width = ranks.num_processes // ranks.size
    if width == 1:
        return Solo()
    group, _ = dist.new_subgroups(width, group=ranks.group, backend="gloo")
    return ProcessGroupRanks(group)


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where a worker is made: its rank in its group, and the workers of other groups in the same process."""

    ranks: Ranks = field(default_factory=Solo)
    workers: Mapping[str, Any] = field(default_factory=dict)
    "by the key of their group"
