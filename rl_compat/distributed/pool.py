"""The devices that roles are placed on, and the processes that use them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rl_compat.distributed.group import WorkerGroup
from rl_compat.distributed.host import HostsRequest, Usage
from rl_compat.distributed.local import (
    FinishedCall,
    LocalWorker,
    Peak,
    WorkerThread,
    cuda_peak,
    device_thread,
    taken,
)
from rl_compat.distributed.ranks import WorkerPlacement
from rl_compat.errors import ConfigError, HardwareError, check_type, quoted
from rl_compat.hardware.gpu.catalogue import choose_gpu, emulated_hardware
from rl_compat.hardware.nodes import least, nodes_with
from rl_compat.hardware.types import Hardware
from rl_compat.planning.types import PoolPlan

if TYPE_CHECKING:
    from rl_compat.distributed.remote import Hosts

Worker = TypeVar("Worker")

_KEYS = itertools.count()
_NUMBERS = itertools.count(1)
_WORKERS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"the workers in this process, by the key of their group"
_HOSTS: weakref.WeakValueDictionary[HostsRequest, Hosts] = weakref.WeakValueDictionary()


class ResourcePool:
    """The devices that a role may use: GPUs of this machine or of a cluster, or CPU processes."""

    def __init__(
        self,
        *,
        gpus: Sequence[int] | None = None,
        num_processes: int | None = None,
        num_nodes: int = 1,
        address: str | None = None,
        emulate: str | None = None,
        nodes: Sequence[str] = (),
        hardware: Hardware | None = None,
    ) -> None:
        """`gpus` are CUDA indices, `[]` is the CPU, None takes the first GPU if there is one.

        A pool with one device works in this process, every other pool has a process for each device: on a CPU
        `num_processes` of them, which may be 1. `num_nodes` takes the same number of devices on each node of the Ray
        cluster at `address`: on the first that have them, or those with the addresses in `nodes`. `emulate` is the
        name of a card whose limits the pool keeps. Raises ConfigError for anything else, HardwareError for a card that
        is not known, and HardwareError later for a device that is not there.
        """
        if gpus is not None:
            check_type("gpus", gpus, list, tuple, range)
            for index in gpus:
                check_type("gpus", index, int)
        for name, number in (("num_processes", num_processes), ("num_nodes", num_nodes)):
            check_type(name, 1 if number is None else number, int)
            if number is not None and number < 1:
                raise ConfigError(f"`{name}` is {number}, expected at least 1")
        if gpus and num_processes not in (None, len(gpus)):
            raise ConfigError(
                f"`num_processes` is {num_processes} and the pool has {len(gpus)} GPUs, each with one process",
                hint="use `gpus=[]` for CPU processes",
            )
        if address is not None and gpus is None:
            raise ConfigError(
                "`address` is given without `gpus`, and the nodes of a cluster have several",
                hint="`gpus=range(8)` takes eight GPUs of each node, `gpus=[]` takes `num_processes` of its cores",
            )
        check_type("nodes", nodes, list, tuple)
        if nodes and address is None:
            raise ConfigError(
                f"`nodes` is {[*nodes]} without the `address` of a Ray cluster",
                hint="give the address of its head node",
            )
        if len(set(nodes)) < len(nodes):
            raise ConfigError(f"`nodes` is {[*nodes]}, which names a node twice")
        if nodes and len(nodes) != num_nodes:
            raise ConfigError(
                f"`nodes` names {len(nodes)} nodes and `num_nodes` is {num_nodes}", hint=f"set `num_nodes={len(nodes)}`"
            )
        if num_nodes > 1 and address is None:
            raise ConfigError(
                f"`num_nodes` is {num_nodes} without the `address` of a Ray cluster",
                hint="start one with `rlc cluster up`, and use its address",
            )
        if emulate is not None:
            check_type("emulate", emulate, str)
            choose_gpu(emulate)
        self.gpus = None if gpus is None else tuple(gpus)
        "CUDA indices; empty is the CPU, None the first GPU if there is one"
        self._num_processes = num_processes
        self.address = address
        "of a Ray cluster"
        self._nodes = tuple(nodes)
        self.num_nodes = num_nodes
        self.emulate = emulate
        "card whose limits the pool keeps"
        self._has_processes = not (num_processes is None and emulate is None and address is None)
        self._number = next(_NUMBERS)
        self._given_hardware = hardware
        self._plan: PoolPlan | None = None
        self._hosts: Hosts | None = None
        self._num_users = 0

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

    @property
    def name(self) -> str:
        """Pools of the same devices have the same name; processes of a CPU are those of their pool."""
        if self.is_local or self.gpus:
            devices = "_".join(f"gpu{device.index}" for device in self.hardware.devices) or "cpu"
            return devices if self.address is None else f"{devices}_of_{self.num_nodes}_from_{self.nodes[0]}"
        return f"{'_'.join((self.emulate or 'cpu').lower().split())}_{self._number}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The addresses of the nodes of a cluster that the pool takes; empty for this machine."""
        if self.address is not None and not self._nodes:
            assert self.hardware, "finds them"
        return self._nodes

    @property
    def devices_per_node(self) -> int:
        """Devices, or CPU processes, on each node."""
        return len(self.gpus or ()) or self._num_processes or 1

    @property
    def is_local(self) -> bool:
        """Whether the workers run in this process."""
        return self.devices_per_node * self.num_nodes == 1 and not self._has_processes

    def use(self, plan: PoolPlan) -> None:
        """Let processes that start from now on work as the plan says."""
        self._plan = plan

    @cached_property
    def hardware(self) -> Hardware:
        """The machine, or what each node of the pool has, with only the devices of this pool."""
        if self._given_hardware is None and self.address is not None:
            found = self._of_nodes(self.address)
        elif self._given_hardware is None:
            from rl_compat.hardware.probe import probe

            found = probe(packages=False)
        else:
            found = self._given_hardware
        if self.emulate is not None:
            return emulated_hardware(self.emulate, found)
        wanted = [device.index for device in found.devices[:1]] if self.gpus is None else list(self.gpus)
        for index in wanted:
            if index not in [device.index for device in found.devices]:
                raise HardwareError(
                    f"the pool has GPU {index} and {len(found.devices)} GPUs are visible",
                    hint="see `rlc probe` for the visible devices; `ResourcePool(gpus=[])` uses the CPU",
                )
        return replace(found, devices=tuple(device for device in found.devices if device.index in wanted))

    def _of_nodes(self, address: str) -> Hardware:
        """What each node of the pool has, with all nodes of the cluster."""
        from rl_compat.hardware.cluster import probe_cluster

        cluster = probe_cluster(address)
        known = [node.address for node in cluster.nodes]
        for node in self._nodes:
            if node not in known:
                raise HardwareError(
                    f"the cluster at `{address}` has no node `{node}`", hint=f"its nodes are {quoted(known)}"
                )
        candidates = [node for node in cluster.nodes if not self._nodes or node.address in self._nodes]
        taken = nodes_with(
            candidates, gpus=self.gpus or (), num_processes=self.devices_per_node, num_nodes=self.num_nodes
        )
        self._nodes = tuple(node.address for node in taken)
        return replace(least([node.hardware for node in taken if node.hardware is not None]), nodes=cluster.nodes)

    def start(
        self, make_worker: Callable[[WorkerPlacement], Worker], *, tensor_parallel: int = 1
    ) -> WorkerGroup[Worker]:
        """A group of one worker per device, `tensor_parallel` of which compute each layer together.

        Raises what `make_worker` raises, and HardwareError.
        """
        key = f"group-{next(_KEYS)}"
        if self.is_local:
            return WorkerGroup([_local_worker(make_worker, key, device_thread(self._device))], key=key)
        hosts = self._started()
        handles = hosts.start(key, make_worker, tensor_parallel)
        group: WorkerGroup[Worker] = WorkerGroup(handles, key=key, tensor_parallel=tensor_parallel)
        weakref.finalize(group, hosts.drop, key)
        return group

    def take_peak(self) -> Peak | None:
        """The largest peak of memory on a device since the last call; None on a CPU."""
        if self.is_local:
            return None if self._device == "cpu" else cuda_peak(self._device)
        return self._hosts.take_peak() if self._hosts is not None and self.hardware.devices else None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the processes of the pool inside the block; they end with the last block."""
        self._num_users += 1
        try:
            yield
        finally:
            self._num_users -= 1
            if self._num_users == 0:
                self.close()

    def nodes_without(self, file: Path) -> list[str]:
        """The nodes of the pool that do not have this file of this machine. Starts the processes of the pool."""
        return [] if self.address is None else self._started().nodes_without(file)

    def take_usage(self) -> Usage | None:
        """What the processes of the pool did since the last call; None if it works in this process."""
        return None if self._hosts is None else self._hosts.take_usage()

    def take_calls(self) -> list[tuple[int, FinishedCall]]:
        """The calls that have ended since the last time, with their ranks."""
        if self._hosts is not None:
            return taken(self._hosts.finished)
        return [(0, call) for call in taken(device_thread(self._device).finished)] if self.is_local else []

    def close(self) -> None:
        """End the processes of the pool, unless another pool of the same devices uses them."""
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            hosts.pools.discard(self)
            hosts.close_unused()

    @property
    def _device(self) -> str:
        gpus = [device.index for device in self.hardware.devices] if self.gpus is None else self.gpus
        return f"cuda:{gpus[0]}" if gpus else "cpu"

    def _started(self) -> Hosts:
        """The processes of the devices, which pools of the same devices share."""
        from rl_compat.distributed.remote import Hosts

        request = HostsRequest(
            gpus=self.gpus or (),
            per_node=self.devices_per_node,
            num_nodes=self.num_nodes,
            address=self.address,
            nodes=self._nodes,
            on_gpu=bool(self.gpus),
            name="" if self.gpus else self.name,
        )
        if self._hosts is None:
            found = _HOSTS.get(request)
            self._hosts = Hosts(request, self._plan) if found is None or not found.are_whole else found
            self._hosts.pools.add(self)
            _HOSTS[request] = self._hosts
            weakref.finalize(self, Hosts.close_unused, self._hosts)
        return self._hosts


def _local_worker(
    make_worker: Callable[[WorkerPlacement], Worker], key: str, thread: WorkerThread
) -> LocalWorker[Worker]:
    def make() -> Worker:
        worker = make_worker(WorkerPlacement(workers=_WORKERS))
        _WORKERS[key] = worker
        return worker

    return LocalWorker(make, thread)


def start_without_device(make_worker: Callable[[WorkerPlacement], Worker]) -> WorkerGroup[Worker]:
    """A group of one worker that uses no device, and whose calls overlap those of every other worker."""
    key = f"group-{next(_KEYS)}"
    return WorkerGroup([_local_worker(make_worker, key, WorkerThread("host"))], key=key)
