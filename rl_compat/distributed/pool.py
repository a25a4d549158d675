"""Device slots that roles are placed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self, TypeVar

from rl_compat.distributed.group import WorkerGroup
from rl_compat.distributed.local import LocalWorker, WorkerThread, device_thread
from rl_compat.errors import HardwareError, check_type
from rl_compat.hardware.types import Hardware

Worker = TypeVar("Worker")


class ResourcePool:
    """The devices that a role may use: one GPU of this machine, or its CPU."""

    def __init__(self, *, gpus: Sequence[int] | None = None, hardware: Hardware | None = None) -> None:
        """`gpus` are CUDA indices, `[]` is the CPU, None takes the first GPU if there is one.

        Raises ConfigError for anything else, HardwareError for several GPUs, and later for one that is not visible.
        """
        if gpus is not None:
            check_type("gpus", gpus, list, tuple, range)
            for index in gpus:
                check_type("gpus", index, int)
        self._gpus = None if gpus is None else tuple(gpus)
        self._given_hardware = hardware
        if self._gpus is not None and len(self._gpus) > 1:
            raise HardwareError(
                f"the pool has {len(self._gpus)} GPUs and this version supports 1",
                hint="use `ResourcePool(gpus=[0])`",
            )

    @classmethod
    def auto(cls) -> Self:
        """The first visible GPU, or the CPU where there is none."""
        return cls()

    @classmethod
    def given(cls, pool: ResourcePool | None) -> ResourcePool:
        """The pool that a call was given, or the default one. Raises ConfigError for anything else."""
        if pool is not None:
            check_type("pool", pool, ResourcePool, hint="use `ResourcePool(gpus=[0])`, or `gpus=[]` for the CPU")
        return pool or cls.auto()

    @cached_property
    def hardware(self) -> Hardware:
        """The machine with only the devices of this pool."""
        if self._given_hardware is None:
            from rl_compat.hardware.probe import probe

            found = probe(packages=False)
        else:
            found = self._given_hardware
        wanted = [device.index for device in found.devices[:1]] if self._gpus is None else list(self._gpus)
        for index in wanted:
            if index not in [device.index for device in found.devices]:
                raise HardwareError(
                    f"the pool has GPU {index} and {len(found.devices)} GPUs are visible",
                    hint="see `rlc probe` for the visible devices; `ResourcePool(gpus=[])` uses the CPU",
                )
        return replace(found, devices=tuple(device for device in found.devices if device.index in wanted))

    def start(self, make_worker: Callable[[], Worker]) -> WorkerGroup[Worker]:
        """A group of one worker on the device of the pool. Raises what `make_worker` raises."""
        gpus = [device.index for device in self.hardware.devices] if self._gpus is None else self._gpus
        thread = device_thread(f"cuda:{gpus[0]}" if gpus else "cpu")
        return WorkerGroup([LocalWorker(make_worker, thread)])


def start_without_device(make_worker: Callable[[], Worker]) -> WorkerGroup[Worker]:
    """A group of one worker that uses no device, and whose calls overlap those of every other worker."""
    return WorkerGroup([LocalWorker(make_worker, WorkerThread("host"))])
