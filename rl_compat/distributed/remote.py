"""The workers in the processes of a pool: calls on all of them, watched by heartbeats, and the cause if one fails."""

from __future__ import annotations

import re
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rl_compat.distributed.group import ALARM, PendingCall
from rl_compat.distributed.host import HostsRequest, Reply, Usage
from rl_compat.distributed.local import KEPT_CALLS, CallAborted, FinishedCall, Peak
from rl_compat.distributed.ranks import WorkerPlacement
from rl_compat.distributed.ray import START_SECONDS, HostProcesses, RemoteHost
from rl_compat.errors import RLCompatError, WorkerError
from rl_compat.planning.types import PoolPlan

Worker = TypeVar("Worker")

BEAT_SECONDS = 1.0
"between two heartbeats"
SILENCE_SECONDS = 18.0
"without a heartbeat until a host counts as hanging"
GRACE_SECONDS = 2.0
"after a failure, until the other ranks are told to give up their call"
RELEASE_SECONDS = 4.0
"after a failure, until the ranks that failed end, which releases those that wait for them in a collective"
RETURN_SECONDS = 10.0
"after a failure, until the ranks that have not returned end"
LOG_LINES = 20
"of a host that ended, shown with the error"
ECHOES = ("connection closed by peer", "connection reset by peer", "broken pipe", "socket closed", "nccl communicator")
"in the errors of ranks that lost the connection to another"


@dataclass(slots=True, eq=False)
class _Round:
    """One call on all hosts. Its futures finish together, so that a failure is judged with what all ranks say."""

    futures: dict[int, PendingCall[Any]] = field(default_factory=dict)
    "by rank"
    replies: dict[int, Reply] = field(default_factory=dict)
    what: str = ""
    "the call, such as `PolicyWorker.update`"
    is_broken: bool = False
    "a host ended while the call ran"
    is_given_up: bool = False
    "the hosts that still run it have been told so"
    on_progress: Callable[[int], Any] | None = None
    failed_at: float | None = None
    "when the first rank failed"


class Hosts:
    """The hosts of one pool, which get its calls and are watched."""

    def __init__(self, request: HostsRequest, plan: PoolPlan | None) -> None:
        """Start the processes. Raises HardwareError if the cluster does not have them, or if they do not start."""
        self._processes = HostProcesses(request, plan)
        self._ray, self.hosts = self._processes.ray, self._processes.hosts
        self._lock = threading.RLock()
        self._rounds: dict[int, _Round] = {}
        self._failure: WorkerError | None = None
        self._closed = threading.Event()
        self.pools: weakref.WeakSet[Any] = weakref.WeakSet()
        "that use the processes"
        self._told: set[str] = set()
        self.finished: deque[tuple[int, FinishedCall]] = deque(maxlen=KEPT_CALLS)
        "calls, with their ranks"
        self._doomed: list[RemoteHost] = []
        self._is_alone = False
        self._last_usage = time.monotonic(), 0.0
        "when the usage was taken last, and the mean busy seconds of the hosts by that time"
        self._watch = threading.Thread(target=self._watch_hosts, name="heartbeats", daemon=True)
        self._watch.start()

    @property
    def alive(self) -> list[RemoteHost]:
        return [host for host in self.hosts if host.ended is None]

    @property
    def are_whole(self) -> bool:
        """Whether all processes run."""
        return len(self.alive) == len(self.hosts)

    def nodes_without(self, file: Path) -> list[str]:
        """The nodes that do not have this file of this machine."""
        asked = [host.actor.text_of.remote(file.absolute()) for host in self.hosts]
        found = zip(self.hosts, self._ray.get(asked, timeout=START_SECONDS), strict=True)
        return list(dict.fromkeys(host.facts.name for host, text in found if text != file.read_text()))

    def start(
        self, key: str, make_worker: Callable[[WorkerPlacement], Worker], tensor_parallel: int
    ) -> list[RemoteWorker]:
        """Make the worker of a group on every host. Raises what `make_worker` raises."""
        arguments = (key, make_worker, tensor_parallel)
        calls = [self.submit(host, "start", *arguments, what="start of a worker") for host in self.usable]
        names = [call.result() for call in calls]
        return [RemoteWorker(self, host, key, class_name=names[0]) for host in self.hosts]

    @property
    def usable(self) -> list[RemoteHost]:
        """All hosts, or after the end of one the first that is left."""
        return self.hosts if self.are_whole else self.alive[:1]

    def submit(
        self,
        host: RemoteHost,
        method: str,
        *arguments: Any,
        what: str,
        on_progress: Callable[[int], Any] | None = None,
    ) -> PendingCall[Any]:
        """Start a call in the turn of the host; every usable host gets the same calls in the same order."""
        future: PendingCall[Any] = PendingCall(self.interrupt)
        with self._lock:
            if self._failure is not None and ALARM.is_for(self._failure):
                ALARM.silence()
                raise self._failure
            if host not in self.usable:
                raise self._failure or WorkerError(f"{host.name} has ended: {host.ended}")
            if len(self.usable) < len(self.hosts):
                self._go_on_alone()
            turn, host.turn = host.turn, host.turn + 1
            round_ = self._rounds.setdefault(turn, _Round(what=what))
            round_.futures[host.rank] = future
            round_.on_progress = on_progress or round_.on_progress
            reference = getattr(host.actor, method).remote(*arguments, turn=turn)
        reference.future().add_done_callback(lambda done: self._replied(turn, host, done))
        return future

    def submit_now(self, host: RemoteHost, arguments: tuple[Any, ...]) -> PendingCall[Any]:
        """Start an urgent call, which does not wait for its turn."""
        future: PendingCall[Any] = PendingCall(self.interrupt)

        def finish(done: Any) -> None:
            try:
                reply = done.result()
                future.set_exception(reply.error) if reply.error else future.set_result(reply.result)
            except Exception as error:
                self._died(host, error)
                future.set_exception(self._failure or WorkerError(f"{host.name} has ended: {host.ended}"))

        host.actor.call_now.remote(*arguments).future().add_done_callback(finish)
        return future

    def interrupt(self) -> None:
        """End running rollouts early. Other calls run to their end, and the next call waits for its turn after them."""
        with self._lock:
            for round_ in self._rounds.values():
                round_.on_progress = None
        for host in self.alive:
            host.actor.interrupt.remote()

    def drop(self, key: str) -> None:
        """Free the workers of a group."""
        for host in self.alive:
            host.actor.drop.remote(key, turn=host.turn)

    def take_peak(self) -> Peak:
        """The largest peak since the last call of all hosts that answer."""
        asked = [host.actor.take_peak.remote() for host in self.alive]
        answered, _ = self._ray.wait(asked, num_returns=len(asked), timeout=GRACE_SECONDS) if asked else ([], [])
        peak = Peak(0, 0)
        for reference in answered:
            with suppress(self._ray.exceptions.RayError):
                peak = peak.largest(self._ray.get(reference))
        return peak

    def close_unused(self) -> None:
        """End all processes if no pool uses them."""
        if not self.pools:
            self.close()

    def take_usage(self) -> Usage | None:
        """The idle time of the hosts since the last call, and the age of their heartbeats; None if one is lost."""
        asked = [host.actor.busy_seconds.remote() for host in self.usable]
        answered, _ = self._ray.wait(asked, num_returns=len(asked), timeout=GRACE_SECONDS) if asked else ([], [])
        if len(answered) < len(self.hosts):
            return None
        now, (then, before) = time.monotonic(), self._last_usage
        try:
            busy = sum(self._ray.get(answered)) / len(answered)
        except self._ray.exceptions.RayError:
            return None
        self._last_usage = now, busy
        return Usage(
            idle_share=min(1.0, max(0.0, 1.0 - (busy - before) / (now - then))),
            heartbeat_age_seconds=max(now - host.last_beat for host in self.hosts),
        )

    def close(self) -> None:
        """End all processes."""
        if self._closed.is_set() or not self._ray.is_initialized():  # Ray would start again to end them
            return
        self._closed.set()
        with self._lock:
            ending = [*self.alive, *self._doomed]
            self._doomed.clear()
            for host in ending:
                host.ended = host.ended or "the pool was closed"
            pending = [call for round_ in self._rounds.values() for call in round_.futures.values()]
            self._rounds.clear()
        for call in pending:
            call.set_exception(WorkerError("the pool was closed during the call"))
        self._processes.end(ending)
        self._processes.free_devices()

    def _replied(self, turn: int, host: RemoteHost, done: Any) -> None:
        try:
            reply = done.result()
        except Exception as error:
            self._died(host, error)
            return
        with self._lock:
            self._tell(host, reply)
            self.finished += ((host.rank, call) for call in reply.finished)
            round_ = self._rounds.get(turn)
            if round_ is None:  # the pool was closed
                return
            round_.replies[host.rank] = reply
            self._settle(turn, round_)

    def _settle(self, turn: int, round_: _Round) -> None:
        """Finish the futures of a round when every host has replied or ended."""
        errors = {rank: reply.error for rank, reply in round_.replies.items() if reply.error is not None}
        if errors and round_.failed_at is None:
            round_.failed_at = time.monotonic()
        missing = [host for host in self.alive if host.rank not in round_.replies]
        if missing or len(round_.futures) < len(round_.replies):
            return
        del self._rounds[turn]
        cause = self._cause(round_)
        if round_.is_broken and self._failure is not None:
            ALARM.ring(self._failure)
        for rank, future in round_.futures.items():
            if cause is not None:
                future.set_exception(cause)
            else:
                future.set_result(round_.replies[rank].result)

    def _cause(self, round_: _Round) -> BaseException | None:
        """The first error that is not the echo of another; None if all hosts have replied without one."""
        if round_.is_broken:
            return self._failure
        failed = {rank: reply for rank, reply in round_.replies.items() if reply.error is not None}
        if not failed:
            return None
        rank = next((rank for rank, reply in failed.items() if not _is_echo(reply.error)), next(iter(failed)))
        error = failed[rank].error
        assert error is not None
        if not isinstance(error, RLCompatError):
            error.add_note(f"in `{round_.what}` of {self.hosts[rank].name}:\n{failed[rank].trace}")
        echoes = sum(_is_echo(reply.error) for other, reply in failed.items() if other != rank)
        if echoes:
            error.add_note(f"{echoes} other rank{'s' if echoes > 1 else ''} stopped with it")
        return error

    def _died(self, host: RemoteHost, error: Exception) -> None:
        """The process of a host has ended by itself."""
        with self._lock:
            if host.ended is None:
                self._fail(
                    host, f"{host.name} ended while {self._activity(host)}: {_reason(error, self._log_tail(host))}"
                )

    def _fail(self, host: RemoteHost, fact: str) -> None:
        """A host has ended or must end: record the first cause."""
        if self._failure is None:
            others = [f"{other.name} was {self._activity(other)}" for other in self.alive if other is not host]
            log = self._log_tail(host)
            self._failure = WorkerError(
                "\n  ".join([fact, *others[:3], *([f"the last lines of rank {host.rank}:", *log] if log else [])]),
                hint="the same command continues from the newest checkpoint",
            )
        for round_ in self._rounds.values():
            round_.is_broken = True
            round_.failed_at = round_.failed_at or time.monotonic()
        if not self._rounds and not self._is_alone:
            ALARM.ring(self._failure)
        self._end(host, fact)

    def _end(self, host: RemoteHost, why: str) -> None:
        """Let the watching thread kill the process of a host: a thread that receives a reply must not call Ray."""
        host.ended = host.ended or why
        self._doomed.append(host)

    def _watch_hosts(self) -> None:
        beats: dict[int, Any] = {}
        before = time.monotonic()
        while not self._closed.wait(BEAT_SECONDS):
            if time.monotonic() - before > SILENCE_SECONDS / 2:  # this process was stopped, and they may have been
                for host in self.alive:
                    host.last_beat = time.monotonic()
            before = time.monotonic()
            with self._lock:
                doomed, self._doomed = self._doomed, []
            self._processes.end(doomed)
            for host in self.alive:
                reference = beats.pop(host.rank, None) or host.actor.beat.remote()
                try:
                    ready, _ = self._ray.wait([reference], timeout=0.2)
                    if ready:
                        host.beat, host.last_beat = self._ray.get(ready[0]), time.monotonic()
                    else:
                        beats[host.rank] = reference
                except Exception as error:
                    self._died(host, error)
            self._judge()

    def _judge(self) -> None:
        """Report progress; end hosts that stand still, and those that keep others waiting after a failure."""
        with self._lock:
            now = time.monotonic()
            for host in self.alive:
                if now - host.last_beat > SILENCE_SECONDS:
                    silent = f"{now - host.last_beat:.0f} s"
                    self._fail(host, f"{host.name} has not answered for {silent}, {self._activity(host)}")
            for turn, round_ in list(self._rounds.items()):
                if round_.on_progress is not None and not round_.replies:
                    round_.on_progress(sum(host.beat.progress for host in self.alive))
                if round_.failed_at is not None:
                    self._end_late(round_, now - round_.failed_at)
                self._settle(turn, round_)

    def _end_late(self, round_: _Round, seconds: float) -> None:
        """Let the ranks that have not returned give up; end those that failed, and at last those that stay."""
        missing = [host for host in self.alive if host.rank not in round_.replies]
        failed = [host for host in self.alive if host.rank in round_.replies and round_.replies[host.rank].error]
        if missing and seconds > GRACE_SECONDS and not round_.is_given_up:
            round_.is_given_up = True
            for host in missing:
                host.actor.give_up.remote()
        if missing and seconds > RELEASE_SECONDS:
            for host in failed:
                self._end(host, "it failed")
        if missing and seconds > RETURN_SECONDS:
            for host in missing:
                self._end(host, "it did not return after another rank had failed")

    def _go_on_alone(self) -> None:
        """Keep one host, which saves what it holds."""
        if not self._is_alone:
            self._is_alone = True
            for host in self.alive[1:]:
                self._end(host, "another rank ended")
            self.submit(self.alive[0], "leave_group", what="leaving the group")

    def _activity(self, host: RemoteHost) -> str:
        """The call that a host is in."""
        inside = f" in `{host.beat.collective}`" if host.beat.collective else ""
        running = [turn for turn, round_ in self._rounds.items() if host.rank not in round_.replies]
        return f"in `{self._rounds[min(running)].what}`{inside}" if running else "idle"

    def _tell(self, host: RemoteHost, reply: Reply) -> None:
        """Repeat the warnings of a host, each once for all hosts."""
        for line in reply.warnings:
            if line not in self._told:
                self._told.add(line)
                warnings.warn(f"{host.name}: {line}", RuntimeWarning, stacklevel=2)

    def _log_tail(self, host: RemoteHost) -> Sequence[str]:
        """The last lines that the process wrote, if this machine has its log."""
        try:
            with Path(host.facts.log).open(errors="replace") as file:
                lines = (line.rstrip() for line in file if not line.startswith(":"))  # Ray marks its own so
                return list(deque(lines, maxlen=LOG_LINES))
        except OSError:
            return ()


class RemoteWorker:
    """A worker in a host."""

    def __init__(self, hosts: Hosts, host: RemoteHost, key: str, *, class_name: str) -> None:
        self._hosts, self._host, self._key, self._class_name = hosts, host, key, class_name

    @property
    def is_alive(self) -> bool:
        return self._host in self._hosts.usable

    def call(self, name: str, arguments: dict[str, Any], *, urgent: bool) -> PendingCall[Any]:
        """Start a method after the calls before it, or at once if it is urgent."""
        if urgent:
            return self._hosts.submit_now(self._host, (self._key, name, arguments))
        on_progress = arguments.get("on_progress")
        if "on_progress" in arguments:  # stays here: the heartbeat brings the numbers, and the reply the responses
            arguments = arguments | {"on_progress": None, "on_ended": None}
        call = (self._host, "call", self._key, name, arguments)
        return self._hosts.submit(*call, what=f"{self._class_name}.{name}", on_progress=on_progress)


def _is_echo(error: BaseException | None) -> bool:
    """Whether an error says no more than that another rank is gone, or has failed."""
    return isinstance(error, CallAborted) or any(sign in str(error).lower() for sign in ECHOES)


def _reason(error: Exception, log: Sequence[str]) -> str:
    """Why a process ended, from what Ray and the process itself say."""
    told = re.search(r"exit code (-?\d+)", " ".join([*log[-3:], str(error)]))
    if told:
        return f"exit code {told.group(1)}"
    if "running low on memory" in str(error):
        return "Ray killed it, since the memory of its node was nearly full"
    if "Unavailable" in type(error).__name__:
        return "its node does not answer"
    if "Task" in type(error).__name__ or "System" in type(error).__name__:
        return f"it could not read the call: {str(error).strip().splitlines()[-1]}"
    return "killed by a signal, as the system does when memory is full (see `dmesg`)"
