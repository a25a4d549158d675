"""The nodes of a Ray cluster: the facts of each, read by a process that runs there."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_compat import __version__
from rl_compat.errors import HardwareError
from rl_compat.hardware.probe import probe
from rl_compat.hardware.recording import from_json, to_json
from rl_compat.hardware.system.interfaces import read_interfaces
from rl_compat.hardware.types import Hardware, Interface, Node

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"Ray reports nothing, does not pack the working folder, and prints nothing on stdout about processes that end"
TOKEN = Path("~/.ray/auth_token")
"with which Ray lets a process join a cluster; it asks by itself only where it finds the cluster"
INHERITED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"that a terminal or a batch system sends to all processes, and that this process acts on"
SET_BY_RAY = ("OMP_NUM_THREADS",)
"in its workers, and not by the user"
START_SECONDS = 60.0
"for a process on each node to start"
CONNECT_SECONDS = 3.0
"for a node to answer at a port"
CLOCK_READINGS = 5
STARTS = 3
"of Ray on this machine, until its error is that of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What a node of a cluster has, and how much of it is free."""

    address: str
    name: str
    is_head: bool
    is_alive: bool
    card: str | None
    gpus: int
    gpus_free: int
    cpus: int
    cpus_free: int


def import_ray() -> Any:
    """The module. Raises HardwareError if it is not installed."""
    environment = dict(RAY_ENVIRONMENT)
    if TOKEN.expanduser().exists() and "ray" not in sys.modules:  # Ray reads the mode when it is imported
        environment["RAY_AUTH_MODE"] = "token"
    os.environ.update({name: os.environ.get(name, value) for name, value in environment.items()})
    try:
        import ray
    except ImportError as error:
        raise HardwareError(
            "several devices need the package `ray`, which is not installed",
            hint="pip install 'rl_compat[cluster]'",
        ) from error
    return ray


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `address`, or to one on this machine that ends with this process.

    Raises HardwareError if the address does not answer or Ray is not installed.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray
    _check_answers(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "namespace": "rl_compat"}
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, INHERITED_SIGNALS)  # the processes that start keep this mask
    try:
        if address is None:
            _start_here(ray, quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:  # also a bare one, for a process of Ray that does not start in time
        raise _not_connected(address, error) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return ray


def _start_here(ray: Any, options: Mapping[str, Any]) -> None:
    """Start Ray on this machine, again if a process of it has not come up in the 30 s that Ray waits."""
    for starts_left in reversed(range(STARTS)):
        try:
            init = partial(ray.init, "local", num_cpus=1, num_gpus=0, include_dashboard=False, **options)
            _in_lasting_thread(init)
            return
        except Exception:
            ray.shutdown()
            if starts_left == 0:
                raise


def _in_lasting_thread(start: Callable[[], object]) -> None:
    """Call `start` in a thread that lasts as long as this process.

    Linux ends the processes of Ray with the thread that started them, not with its process (PR_SET_PDEATHSIG).
    """
    if threading.current_thread() is threading.main_thread():
        start()
        return
    started: Future[None] = Future()

    def run() -> None:
        try:
            start()
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=run, name="ray", daemon=True).start()
    started.result()


def _check_answers(address: str | None) -> None:
    """Raise HardwareError at once for `host:port` where nobody listens: Ray tries for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if found is None:
        return
    try:
        socket.create_connection((found.group(1), int(found.group(2))), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _not_connected(address, error) from error


def _not_connected(address: str | None, error: Exception) -> HardwareError:
    if address is None:
        return HardwareError(
            f"Ray has not started on this machine: {error}",
            hint="look at the load and the free memory of the machine, and start again",
        )
    if isinstance(error, RuntimeError):
        return HardwareError(
            f"the Ray cluster at `{address}` refuses this process: {error}",
            hint="use the same versions of Ray and Python on all machines of the cluster",
        )
    return HardwareError(
        f"the Ray cluster at `{address}` does not answer: {error}",
        hint="start it with `rlc cluster up`, or leave `plan.address` empty to use this machine",
    )


def list_nodes(address: str) -> list[NodeResources]:
    """The nodes of the Ray cluster at `address`, head node first. Raises HardwareError if it does not answer."""
    ray = connect(address)
    free = ray._private.state.available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        total, left = node["Resources"], free.get(node["NodeID"], {})
        kinds = [name.partition(":")[2] for name in total if name.startswith("accelerator_type:")]
        found = NodeResources(
            address=node["NodeManagerAddress"],
            name=node["NodeManagerHostname"],
            is_head="node:__internal_head__" in total,
            is_alive=node["Alive"],
            card=kinds[0] if kinds else None,
            gpus=int(total.get("GPU", 0)),
            gpus_free=int(left.get("GPU", 0)),
            cpus=int(total.get("CPU", 0)),
            cpus_free=int(left.get("CPU", 0)),
        )
        nodes.append(found)
    return sorted(nodes, key=lambda node: (not node.is_head, _order(node.address)))


def probe_nodes(
    address: str,
    *,
    torch_timeout_seconds: float | None = 60.0,
    packages: bool = False,
    network_timeout_seconds: float | None = None,
) -> tuple[Node, ...]:
    """The nodes of the Ray cluster at `address`, in the order of their addresses, each read as `probe` does.

    A node that cannot be read has an `error`. Raises HardwareError if the cluster does not answer.
    """
    ray = connect(address)
    listed = [node for node in ray.nodes() if node["Alive"]]
    scouts = [_scout_on(ray, node["NodeID"]) for node in listed]
    options = {
        "torch_timeout_seconds": torch_timeout_seconds,
        "packages": packages,
        "network_timeout_seconds": network_timeout_seconds,
    }
    seconds = START_SECONDS + (torch_timeout_seconds or 0.0) + (network_timeout_seconds or 0.0)
    pending = [scout.read.remote(options) for scout in scouts]
    ray.wait(pending, num_returns=len(pending), timeout=seconds)
    nodes = [_node_of(ray, raw, reading) for raw, reading in zip(listed, pending, strict=True)]
    answering = [index for index, node in enumerate(nodes) if node.error is None]
    ports = {index: ray.get(scouts[index].listen.remote(), timeout=START_SECONDS) for index in answering}
    for index in answering:
        others = [(nodes[other].address, port) for other, port in ports.items() if other != index]
        unreachable = scouts[index].unreachable.remote(others)
        nodes[index] = replace(
            nodes[index],
            clock_offset_seconds=_clock_offset(ray, scouts[index]),
            unreachable=tuple(ray.get(unreachable, timeout=START_SECONDS)),
        )
    for scout in scouts:
        ray.kill(scout)
    return tuple(sorted(nodes, key=lambda node: _order(node.address)))


def probe_cluster(address: str) -> Hardware:
    """This machine with the nodes of the Ray cluster at `address`, for a plan. Nodes that cannot be read are left out.

    Raises HardwareError if the cluster does not answer or no node can be read.
    """
    nodes = probe_nodes(address)
    usable = tuple(_as_given_out(node) for node in nodes if node.hardware is not None and node.num_cpus > 0)
    lost = [f"the node {node.address} is left out: {node.error}" for node in nodes if node.error is not None]
    if not usable:
        raise HardwareError(
            "; ".join(lost) or f"no node of the Ray cluster at `{address}` gives out cores",
            hint=f"see `rlc doctor --cluster {address}`",
        )
    machine = probe(torch_timeout_seconds=None, packages=False)
    return replace(machine, nodes=usable, warnings=(*machine.warnings, *lost))


def _as_given_out(node: Node) -> Node:
    """The node with no more GPUs than Ray gives out."""
    assert node.hardware is not None
    return replace(node, hardware=replace(node.hardware, devices=node.hardware.devices[: node.num_gpus]))


def _scout_on(ray: Any, node: str) -> Any:
    """A process on a node that takes no device of it."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    # Without this variable, some versions of Ray hide all GPUs from a process that asks for none.
    visible = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    return ray.remote(_Scout).options(num_cpus=0, scheduling_strategy=strategy, runtime_env=visible).remote()


def _node_of(ray: Any, raw: Mapping[str, Any], reading: Any) -> Node:
    node = Node(
        address=raw["NodeManagerAddress"],
        name=raw["NodeManagerHostname"],
        num_cpus=int(raw["Resources"].get("CPU", 0)),
        num_gpus=int(raw["Resources"].get("GPU", 0)),
    )
    try:
        found = ray.get(reading, timeout=0)
        return replace(
            node,
            hardware=from_json(found["hardware"]),
            version=found["version"],
            name_address=found["name_address"],
            interfaces=tuple(Interface(**interface) for interface in found["interfaces"]),
        )
    except ray.exceptions.GetTimeoutError:
        return replace(node, error="it does not answer")
    except (ray.exceptions.RayError, HardwareError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return replace(node, error=lines[-1].strip() if lines else type(error).__name__)


def _clock_offset(ray: Any, scout: Any) -> float:
    """The clock of a node minus ours, from the reading that took the least time on its way."""
    readings = []
    for _ in range(CLOCK_READINGS):
        before = time.time()
        there = ray.get(scout.clock.remote(), timeout=START_SECONDS)
        after = time.time()
        readings.append((after - before, there - (before + after) / 2))
    return float(min(readings)[1])


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part) for part in address.split(".")) if address.replace(".", "").isdigit() else ()


class _Scout:
    """A process on a node that reads its facts."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def read(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The facts as JSON, which another version of this package can refuse by name."""
        environment = {name: value for name, value in os.environ.items() if name not in SET_BY_RAY}
        name_address = None
        with suppress(OSError):
            name_address = socket.gethostbyname(socket.gethostname())
        return {
            "hardware": to_json(probe(environment=environment, **options)),
            "version": __version__,
            "name_address": name_address,
            "interfaces": [{"name": found.name, "address": found.address} for found in read_interfaces()],
        }

    def listen(self) -> int:
        """A port that accepts connections for as long as this process lives."""
        self._listener = socket.create_server(("", 0), backlog=1024)
        return int(self._listener.getsockname()[1])

    def unreachable(self, ports: Sequence[tuple[str, int]]) -> list[str]:
        """The addresses of those that do not accept a connection."""
        with ThreadPoolExecutor(max_workers=32) as threads:
            reached = list(threads.map(_accepts, ports))
        return [address for (address, _), accepted in zip(ports, reached, strict=True) if not accepted]

    def clock(self) -> float:
        return time.time()


def _accepts(port: tuple[str, int]) -> bool:
    try:
        socket.create_connection(port, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
