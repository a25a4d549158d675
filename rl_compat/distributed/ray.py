"""The processes of a pool of several devices: one host per device, started and ended by Ray."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_compat.distributed.host import Beat, HostFacts, HostsRequest, Membership, WorkerHost
from rl_compat.distributed.placement import Bundle, rank_order
from rl_compat.errors import HardwareError
from rl_compat.hardware.cluster import connect
from rl_compat.hardware.system.interfaces import interface_between
from rl_compat.hardware.types import Node
from rl_compat.planning.types import PoolPlan

START_SECONDS = 300.0
"for the hosts of a pool to start"
END_SECONDS = 2.0
"for a process to end when Ray kills it"

IDLE = Beat(call=None, collective=None, progress=0)


@dataclass(slots=True, eq=False)
class RemoteHost:
    """A host, seen from the controller."""

    actor: Any
    facts: HostFacts
    rank: int
    turn: int = 0
    "number of its next call"
    beat: Beat = IDLE
    last_beat: float = field(default_factory=time.monotonic)
    ended: str | None = None
    "why it ended"

    @property
    def name(self) -> str:
        return f"rank {self.rank} (`{self.facts.name}`, process {self.facts.pid})"


class HostProcesses:
    """The hosts of one pool, joined in one process group."""

    def __init__(self, request: HostsRequest, plan: PoolPlan | None) -> None:
        """Start the processes. Raises HardwareError if the cluster does not have them, or if they do not start."""
        self.ray = connect(request.address)
        self._group, actors = _place(self.ray, request, plan)
        try:
            self.hosts = _ranked(self.ray, actors)
            _join(self.ray, self.hosts, request, plan)
        except BaseException:
            for actor, _ in actors:
                self.ray.kill(actor)
            self.free_devices()
            raise

    def end(self, hosts: Sequence[RemoteHost]) -> None:
        """End processes by their actors, and by their numbers those of this machine that do not end so."""
        for host in hosts:
            with suppress(Exception):
                self.ray.kill(host.actor)
        here = self.ray.util.get_node_ip_address() if hosts else ""
        left = [host.facts.pid for host in hosts if host.facts.node == here]
        until = time.monotonic() + END_SECONDS
        while left and time.monotonic() < until:
            left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
            time.sleep(0.02)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def free_devices(self) -> None:
        """Give back what the processes held of a cluster."""
        if self._group is not None:
            with suppress(Exception):
                self.ray.util.remove_placement_group(self._group)


class _RayHost(WorkerHost):
    """A host that knows its node and GPU from Ray."""

    def where(self, device: int | None) -> HostFacts:
        """`device` is the index of the process where Ray does not choose the GPU."""
        import ray

        chosen = [int(index) for index in ray.get_gpu_ids()]
        return self.facts(node=ray.util.get_node_ip_address(), device=chosen[0] if device is None else device)


def _place(ray: Any, request: HostsRequest, plan: PoolPlan | None) -> tuple[Any, list[tuple[Any, int | None]]]:
    """The placement group, if the pool is on a cluster, and the actors with the index that they do not get from Ray."""
    count = request.per_node * request.num_nodes
    threads = (plan.num_threads if plan is not None else None) or max(1, (os.cpu_count() or 1) // request.per_node)
    environment = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if request.num_nodes == 1:
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may resolve to an address that gloo cannot reach
    host = ray.remote(_RayHost)
    if request.address is None:
        actors: list[tuple[Any, int | None]] = []
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # what this process imports, they can too
        for index in range(count):
            visible = {"CUDA_VISIBLE_DEVICES": str(request.gpus[index]) if request.gpus else ""}
            options = {"runtime_env": {"env_vars": environment | visible}, "max_concurrency": 64, "num_cpus": 0}
            actors.append((host.options(**options).remote(), index))
        return None, actors
    bundle = {"CPU": float(request.per_node)} | ({"GPU": float(request.per_node)} if request.on_gpu else {})
    _check_resources(ray, request, bundle)
    pins: list[dict[str, float]] = [{f"node:{node}": 0.001} for node in request.nodes] or [{}] * request.num_nodes
    group = ray.util.placement_group([bundle | pin for pin in pins], strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        ray.util.remove_placement_group(group)
        raise HardwareError(
            f"the cluster has not given {count} devices within {START_SECONDS:.0f} s: other programs hold them",
            hint="`ray status` shows who uses the cluster",
        ) from error
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    placed = [
        host.options(
            num_cpus=1,
            num_gpus=1 if request.on_gpu else 0,
            max_concurrency=64,
            runtime_env={"env_vars": environment},
            scheduling_strategy=strategy(group, placement_group_bundle_index=index // request.per_node),
        ).remote()
        for index in range(count)
    ]
    return group, [(actor, None if request.on_gpu else index) for index, actor in enumerate(placed)]


def _check_resources(ray: Any, request: HostsRequest, bundle: dict[str, float]) -> None:
    """Raise HardwareError if no moment can come at which the cluster has these devices: Ray would wait for ever."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if request.nodes:
        nodes = [node for node in nodes if node["NodeManagerAddress"] in request.nodes]
    for resource, amount in bundle.items():
        able = [node for node in nodes if node["Resources"].get(resource, 0) >= amount]
        if len(able) < request.num_nodes:
            held = ", ".join(f"{node['NodeManagerAddress']}: {node['Resources'].get(resource, 0):g}" for node in nodes)
            raise HardwareError(
                f"the pool needs {request.num_nodes} nodes with {request.per_node} {resource}s each, "
                f"and the cluster has {held}",
                hint="use a smaller `plan.num_devices` or `plan.num_nodes`, or add nodes with `ray start --address`",
            )


def _ranked(ray: Any, actors: Sequence[tuple[Any, int | None]]) -> list[RemoteHost]:
    """The hosts, numbered by node and device."""
    facts = _answers(ray, [actor.where.remote(device) for actor, device in actors])
    order = rank_order([Bundle(where.node, where.device) for where in facts])
    return [
        RemoteHost(actor=actors[position][0], facts=facts[position], rank=rank) for rank, position in enumerate(order)
    ]


def _answers(ray: Any, calls: Sequence[Any]) -> list[Any]:
    """The results of calls while the hosts start. Raises HardwareError for a host that ends or takes too long."""
    waiting, until = list(calls), time.monotonic() + START_SECONDS
    while waiting:
        done, waiting = ray.wait(waiting, timeout=max(0.0, until - time.monotonic()))
        if not done:
            raise HardwareError(
                f"{len(waiting)} of {len(calls)} processes have not started within {START_SECONDS:.0f} s",
                hint="look at the load and the free memory of the machine",
            )
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            raise HardwareError(
                f"a process has ended while it started: {str(error).strip().splitlines()[-1]}",
                hint="look at the free memory of the machine, and at the logs of Ray in `/tmp/ray/session_latest/logs`",
            ) from error
    return list(ray.get(list(calls)))


def _join(ray: Any, hosts: Sequence[RemoteHost], request: HostsRequest, plan: PoolPlan | None) -> None:
    """Join the hosts in one process group."""
    first = hosts[0]
    (port,) = _answers(ray, [first.actor.free_port.remote()])
    interfaces = _interfaces(hosts)
    joins = [
        host.actor.join.remote(
            Membership(
                rank=host.rank,
                size=len(hosts),
                address=f"{first.facts.node}:{port}" if request.num_nodes > 1 else f"127.0.0.1:{port}",
                plan=plan,
                folder=str(Path.cwd()),
                interface=interfaces.get(host.facts.node),
            )
        )
        for host in hosts
    ]
    for reply in _answers(ray, joins):
        if reply.error is not None:
            raise reply.error


def _interfaces(hosts: Sequence[RemoteHost]) -> dict[str, str]:
    """The interface through which each of several nodes reaches the others, by address; none for one node."""
    nodes = {host.facts.node: Node(address=host.facts.node, interfaces=host.facts.interfaces) for host in hosts}
    if len(nodes) == 1:
        return {}
    found = {address: interface_between(node, list(nodes.values())) for address, node in nodes.items()}
    for address, interface in found.items():
        if interface is None:
            raise HardwareError(
                f"no network interface of the node `{address}` has an address that the other nodes could use",
                hint="`rlc doctor --cluster auto` shows the interfaces of all nodes",
            )
    return {address: interface.name for address, interface in found.items() if interface is not None}
