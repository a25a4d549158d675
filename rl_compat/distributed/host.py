"""A host: the process of one device, with the workers of all roles on it."""

from __future__ import annotations

import copy
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist

from rl_compat.distributed.local import FinishedCall, LocalWorker, Peak, WorkerThread, cuda_peak, taken
from rl_compat.distributed.ranks import ProcessGroupRanks, Ranks, Solo, TensorRanks, WorkerPlacement
from rl_compat.emulation.device import emulate
from rl_compat.hardware.system.interfaces import read_interfaces
from rl_compat.hardware.types import Interface
from rl_compat.planning.types import PoolPlan

GROUP_TIMEOUT = timedelta(hours=2)
"of a collective: the heartbeat finds a rank that stands still much earlier"

PR_SET_PDEATHSIG = 1
"of Linux's prctl: the signal that a process gets when the one that started it ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsRequest:
    """The processes that a pool asks for."""

    gpus: tuple[int, ...]
    "indices on each node, which Ray gives out on a cluster; empty for the CPU"
    per_node: int
    "processes"
    num_nodes: int
    address: str | None = None
    "of a running Ray cluster; None starts one on this machine"
    nodes: tuple[str, ...] = ()
    "addresses of the nodes of the cluster to use; empty for any"
    on_gpu: bool = False
    name: str = ""
    "tells pools of CPU processes apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Where a host runs."""

    node: str
    "address of the node"
    device: int
    "index of the GPU on its node, or of the process on a CPU"
    name: str
    "host name of the node"
    pid: int
    log: str
    "file that the process writes its errors to"
    interfaces: tuple[Interface, ...] = ()
    "of the node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a host needs to join the process group of its pool."""

    rank: int
    size: int
    address: str
    "`host:port` of rank 0"
    plan: PoolPlan | None
    folder: str
    "in which the controller works, so that paths mean the same"
    interface: str | None = None
    "through which the node reaches the others; None for one node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a host is doing."""

    call: str | None
    "`PolicyWorker.update`; None while it waits for one"
    collective: str | None
    "that the call is in"
    progress: int
    "items of the call that are done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the hosts of a pool did since the last look."""

    idle_share: float
    "of the time, mean of all hosts"
    heartbeat_age_seconds: float
    "since the last heartbeat of the host that has been silent longest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a call, or its error, with what the call logged."""

    result: Any = None
    error: BaseException | None = None
    trace: str = ""
    warnings: tuple[str, ...] = ()
    finished: tuple[FinishedCall, ...] = ()
    "calls since the last reply"


class WorkerHost:
    """Runs in a process of its own. Calls may come from several threads; workers run them in the order of `turn`."""

    def __init__(self) -> None:
        faulthandler.enable()
        os._exit = _telling_exit
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also a process that stands still ends with Ray
        self._workers: dict[str, LocalWorker[Any]] = {}
        self._objects: dict[str, Any] = {}
        self._process = ExitStack()
        self._ranks: Ranks = Solo()
        self._thread: WorkerThread
        self._log = _Log()
        self._running: str | None = None
        self._progress = 0
        self._busy_seconds = 0.0
        self._busy_since: float | None = None
        self._turn = 0
        self._turns = threading.Condition()

    def facts(self, *, node: str, device: int) -> HostFacts:
        log = Path("/proc/self/fd/2")
        return HostFacts(
            node=node,
            device=device,
            name=socket.gethostname(),
            pid=os.getpid(),
            log=str(log.readlink()) if log.is_symlink() else "",
            interfaces=read_interfaces(),
        )

    def text_of(self, file: Path) -> str | None:
        """The content of a file on this node; None if it is not there."""
        try:
            return file.read_text()
        except OSError:
            return None

    def free_port(self) -> int:
        """A port that nobody listens on."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return int(listener.getsockname()[1])

    def join(self, member: Membership) -> Reply:
        """Join the process group, and work as the plan of the pool says until the process ends."""
        return self._replied(lambda: self._join(member))

    def _join(self, member: Membership) -> None:
        if Path(member.folder).is_dir():
            os.chdir(member.folder)
        on_gpu = torch.cuda.is_available()
        if member.interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", member.interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={member.interface}")  # NCCL takes a prefix otherwise
        if member.size > 1:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                init_method=f"tcp://{member.address}",
                rank=member.rank,
                world_size=member.size,
                timeout=GROUP_TIMEOUT,
            )
            self._ranks = ProcessGroupRanks()
        if member.plan is not None:
            device = "cuda:0" if on_gpu else "cpu"
            self._process.enter_context(emulate(replace(member.plan, devices=(device,))))
        self._thread = WorkerThread("device")  # emulation applies to threads that start inside its context

    def start(
        self, key: str, make_worker: Callable[[WorkerPlacement], Any], tensor_parallel: int, *, turn: int
    ) -> Reply:
        """Make the worker of a group; the name of its class."""

        def make() -> str:
            ranks = TensorRanks(self._ranks, tensor_parallel) if tensor_parallel > 1 else self._ranks
            place = WorkerPlacement(ranks=ranks, workers=self._objects)
            self._workers[key] = LocalWorker(lambda: self._objects.setdefault(key, make_worker(place)), self._thread)
            return type(self._objects[key]).__name__

        return self._in_turn(turn, "start of a worker", make)

    def call(self, key: str, name: str, arguments: dict[str, Any], *, turn: int) -> Reply:
        """Call a method of the worker of a group."""

        def call() -> Any:
            if "on_progress" in arguments:
                arguments["on_progress"] = self._report
            return self._workers[key].call(name, arguments, urgent=False).result()

        return self._in_turn(turn, name, call)

    def call_now(self, key: str, name: str, arguments: dict[str, Any]) -> Reply:
        """Call an urgent method during the running call."""
        return self._replied(lambda: self._workers[key].call(name, arguments, urgent=True).result())

    def interrupt(self) -> None:
        """End a running rollout early. Other calls run to their end, since ranks wait for each other in them."""
        for worker in list(self._objects.values()):
            if hasattr(worker, "abort"):
                worker.abort()

    def give_up(self) -> None:
        """End the running call after another rank has failed, so that this one can save what it holds."""
        self._thread.abort()
        if isinstance(self._ranks, ProcessGroupRanks):
            self._ranks.abort()

    def drop(self, key: str, *, turn: int) -> None:
        """Free the worker of a group after the calls before this turn, which may be calls of it."""
        with self._turns:
            self._turns.wait_for(lambda: self._turn >= turn)
        self._workers.pop(key, None)
        self._objects.pop(key, None)

    def leave_group(self, *, turn: int) -> Reply:
        """Go on alone after other ranks have ended."""
        return self._in_turn(turn, "leaving the group", lambda: cast(ProcessGroupRanks, self._ranks).leave())

    def beat(self) -> Beat:
        waiting = self._ranks.waiting if isinstance(self._ranks, ProcessGroupRanks) else None
        return Beat(call=self._running, collective=waiting, progress=self._progress)

    def take_peak(self) -> Peak:
        """Peak memory of the device since the last call; zeros on a CPU."""
        return cuda_peak("cuda:0") if torch.cuda.is_available() else Peak(0, 0)

    def busy_seconds(self) -> float:
        """Seconds in calls so far, with the waiting for other ranks inside of them."""
        since = self._busy_since
        return self._busy_seconds + (0.0 if since is None else time.monotonic() - since)

    def _report(self, done: int) -> None:
        self._progress = done

    def _in_turn(self, turn: int, what: str, work: Callable[[], Any]) -> Reply:
        with self._turns:
            self._turns.wait_for(lambda: self._turn == turn)
        self._running, self._progress, self._busy_since = what, 0, time.monotonic()
        try:
            return replace(self._replied(work), finished=tuple(taken(self._thread.finished)))
        finally:
            self._running, self._busy_seconds, self._busy_since = None, self.busy_seconds(), None
            with self._turns:
                self._turn += 1
                self._turns.notify_all()

    def _replied(self, work: Callable[[], Any]) -> Reply:
        try:
            result = work()
        except BaseException as error:
            return Reply(error=_portable(error), trace=traceback.format_exc(), warnings=self._log.take())
        return Reply(result=result, warnings=self._log.take())


_exit = os._exit


def _telling_exit(status: int) -> NoReturn:
    """End the process, and leave the exit code in its log: nobody else learns it."""
    os.write(2, f"exit code {status}\n".encode())
    _exit(status)


def _portable(error: BaseException) -> BaseException:
    """The error, or its text if it cannot be sent to the controller."""
    try:
        copy.deepcopy(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@dataclass(slots=True)
class _Log:
    """What this process warns of, until the next reply takes it to the controller."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        warnings.showwarning = lambda message, *_, **__: self.lines.append(str(message))
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)

    def take(self) -> tuple[str, ...]:
        taken, self.lines = self.lines, []
        return tuple(dict.fromkeys(taken))
