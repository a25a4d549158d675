"""Device slots that roles are placed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

from rl_compat.distributed.local import LocalWorkerGroup
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Hardware

Worker = TypeVar("Worker")


class WorkerGroup(Protocol):
    """The workers of one role, called as one."""

    def run(self, method: Callable[..., Any], **arguments: Any) -> Future[Any]:
        """Call a worker's method on the group; split, broadcast and merge are declared beside the method."""
        ...


class ResourcePool:
    """The devices of one machine that a role may use: one GPU, or the CPU."""

    def __init__(self, *, gpus: Sequence[int] | None = None, hardware: Hardware | None = None) -> None:
        """`gpus` are CUDA indexes, `[]` is the CPU, None takes the first GPU if there is one.

        Raises HardwareError for a GPU that is not visible, and for more than one.
        """
        self._gpus = None if gpus is None else tuple(gpus)
        self._given_hardware = hardware
        if self._gpus is not None and len(self._gpus) > 1:
            raise HardwareError(
                f"a pool of {len(self._gpus)} GPUs was asked for and this version trains on 1",
                hint="use `ResourcePool(gpus=[0])`",
            )

    @classmethod
    def auto(cls) -> Self:
        """The first visible GPU, or the CPU where there is none."""
        return cls()

    @cached_property
    def hardware(self) -> Hardware:
        """The machine as this pool sees it: its own devices only."""
        from dataclasses import replace

        if self._given_hardware is None:
            from rl_compat.hardware.probe import probe

            found = probe(packages=False)
        else:
            found = self._given_hardware
        wanted = [device.index for device in found.devices[:1]] if self._gpus is None else list(self._gpus)
        for index in wanted:
            if index not in [device.index for device in found.devices]:
                raise HardwareError(
                    f"GPU {index} was asked for and {len(found.devices)} are visible",
                    hint="see `rlc probe` for the visible devices; `ResourcePool(gpus=[])` uses the CPU",
                )
        return replace(found, devices=tuple(device for device in found.devices if device.index in wanted))

    def start(self, make_worker: Callable[[], Worker]) -> LocalWorkerGroup[Worker]:
        """A group of one worker in this process."""
        return LocalWorkerGroup([make_worker()])
