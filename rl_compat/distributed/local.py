"""Workers in this process: one thread per device runs the calls of all its workers in order."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from rl_compat.distributed.group import PendingCall, dispatch_of

Result = TypeVar("Result")
Worker = TypeVar("Worker")
Item = TypeVar("Item")

KEPT_CALLS = 10_000
"that a thread remembers if nobody asks for them"


class CallAborted(BaseException):
    """Raised inside a worker whose caller was interrupted while it waited for the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCall:
    """When a worker ran a call."""

    name: str
    "such as `PolicyWorker.update`"
    start: float
    "seconds since the epoch"
    end: float
    rows: int | None
    "of its share of the first split argument, or that it has taken; None if the call is not about rows"
    version: int | None
    "policy version of the worker when the call ended; None if it has none"


def taken(items: deque[Item]) -> list[Item]:
    """All items of a queue, which other threads may add to; they are removed."""
    return [items.popleft() for _ in range(len(items))]


@dataclass(slots=True)
class _Call:
    work: Callable[[], Any]
    future: PendingCall[Any]


@dataclass(slots=True)
class _Running:
    """The call that a thread runs now. The lock is held while it begins, ends or is aborted."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    future: PendingCall[Any] | None = None
    is_aborting: bool = False


class WorkerThread:
    """A daemon thread that runs calls one after the other. It ends when nothing refers to this object."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._running = _Running()
        self.finished: deque[FinishedCall] = deque(maxlen=KEPT_CALLS)
        self._thread = threading.Thread(target=_serve, args=(self._calls, self._running), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)
        _THREADS.add(self)

    def submit(self, work: Callable[[], Result]) -> PendingCall[Result]:
        """Run `work` after the calls before it, with the caller's dispatch modes and number of torch threads."""
        future: PendingCall[Result] = PendingCall(abort_running_calls)
        self._calls.put(_Call(as_this_thread(work), future))
        return future

    def abort(self) -> Future[Any] | None:
        """Cancel the waiting calls and raise CallAborted in the running one, whose future is returned."""
        while True:
            try:
                waiting = self._calls.get_nowait()
            except Empty:
                break
            if waiting is None:
                self._calls.put(None)
                break
            waiting.future.cancel()
        with self._running.lock:
            if self._running.future is not None and not self._running.is_aborting:
                self._running.is_aborting = True
                _raise_in(self._thread.ident, CallAborted)
            return self._running.future


class DeviceThread(WorkerThread):
    """The thread of a device. All workers that use the device share it."""


_THREADS: weakref.WeakSet[WorkerThread] = weakref.WeakSet()
_DEVICE_THREADS: weakref.WeakValueDictionary[str, DeviceThread] = weakref.WeakValueDictionary()


def device_thread(device: str) -> DeviceThread:
    """The thread that runs everything on `device` in this process."""
    thread = _DEVICE_THREADS.get(device)
    if thread is None:
        _DEVICE_THREADS[device] = thread = DeviceThread(f"device-{device}")
    return thread


def abort_running_calls() -> None:
    """Stop what all worker threads of this process do. Returns when the devices are idle."""
    aborted = {thread: thread.abort() for thread in list(_THREADS)}
    wait([call for thread, call in aborted.items() if call is not None and isinstance(thread, DeviceThread)])


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory of a device."""

    allocated: int
    "allocated by tensors"
    reserved: int
    "reserved by torch's allocator"

    def largest(self, other: Peak) -> Peak:
        return Peak(max(self.allocated, other.allocated), max(self.reserved, other.reserved))


def cuda_peak(device: str) -> Peak:
    """The gauge of a CUDA device."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    peak = Peak(*(stats[kind]["all"]["peak"] if stats else 0 for kind in ("allocated_bytes", "reserved_bytes")))
    torch.cuda.reset_peak_memory_stats(device)
    return peak


class LocalWorker(Generic[Worker]):
    """A worker whose calls run in a thread of this process."""

    is_alive = True

    def __init__(self, make_worker: Callable[[], Worker], thread: WorkerThread) -> None:
        """Make the worker in the thread. Raises what `make_worker` raises."""
        self._thread = thread
        self._worker = thread.submit(make_worker).result()

    def call(self, name: str, arguments: dict[str, Any], *, urgent: bool) -> PendingCall[Any]:
        """Call a method after the calls before it, or at once in the thread of the caller."""
        method = getattr(self._worker, name)
        if not urgent:
            worker, finished = self._worker, self._thread.finished
            return self._thread.submit(lambda: _recorded(worker, name, arguments, finished))
        future: PendingCall[Any] = PendingCall(abort_running_calls)
        _execute(lambda: method(**arguments), future)
        return future


def take_host_calls() -> list[FinishedCall]:
    """What the workers of this process that use no device have finished since the last call."""
    return [
        call for thread in list(_THREADS) if not isinstance(thread, DeviceThread) for call in taken(thread.finished)
    ]


def _recorded(worker: object, name: str, arguments: dict[str, Any], finished: deque[FinishedCall]) -> Any:
    method = getattr(worker, name)
    declaration = dispatch_of(method)
    rows = len(arguments[declaration.split[0]]) if declaration.split else None
    start = time.time()
    try:
        result = method(**arguments)
        rows = len(result) if declaration.takes_rows else rows
        return result
    finally:
        call, version = f"{type(worker).__name__}.{name}", getattr(worker, "version", None)
        finished.append(FinishedCall(name=call, start=start, end=time.time(), rows=rows, version=version))


def _serve(calls: SimpleQueue[_Call | None], running: _Running) -> None:
    while (call := calls.get()) is not None:
        if call.future.set_running_or_notify_cancel():
            with running.lock:
                running.future, running.is_aborting = call.future, False
            _execute(lambda call=call: _until_finished(call.work, running), call.future)  # type: ignore[misc]
        del call


def _execute(work: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _until_finished(work: Callable[[], Result], running: _Running) -> Result:
    """Run `work`. No abort can reach the thread afterwards."""
    try:
        return work()
    finally:
        while running.future is not None:
            try:
                with running.lock:
                    running.future = None
                    _raise_in(threading.get_ident(), None)
            except CallAborted:
                running.future = None


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next bytecode; None takes back one that has not been raised yet."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(cast(int, thread)), raised)


def as_this_thread(work: Callable[[], Result]) -> Callable[[], Result]:
    """`work` for another thread, with the dispatch modes and the number of torch threads of this one."""
    modes, num_threads = _get_current_dispatch_mode_stack(), torch.get_num_threads()

    def run() -> Result:
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        entered = _get_current_dispatch_mode_stack()
        with ExitStack() as stack:
            for mode in modes:
                if mode not in entered:
                    stack.enter_context(cast(AbstractContextManager[Any], mode))
            return work()

    return run
