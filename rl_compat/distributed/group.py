"""The workers of one role, called as one: which arguments are split, and how the results are merged."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from rl_compat.batch import Batch

Worker = TypeVar("Worker", covariant=True)
Params = ParamSpec("Params")
Result = TypeVar("Result")
Made = TypeVar("Made")


class Alarm:
    """A failure that all callers who wait learn of, whatever they wait for; if there are none, the next one does."""

    def __init__(self) -> None:
        self.rung: Future[None] = Future()

    def ring(self, error: Exception) -> None:
        """Raise the error in the callers that wait. Until then further failures are not told."""
        if not self.rung.done():
            self.rung.set_exception(error)

    def is_for(self, error: BaseException | None) -> bool:
        """Whether nobody has learned of the error yet."""
        return error is not None and self.rung.done() and self.rung.exception() is error

    def silence(self) -> None:
        self.rung = Future()


ALARM = Alarm()
"rung when a process has ended"


class CallsStopped(BaseException):
    """Raised in a thread that waits for a call when another thread ends its work."""


class _Waiting(threading.local):
    stop: Future[None] | None = None
    "ends what this thread waits for"


_WAITING = _Waiting()


@contextmanager
def calls_until(stop: Future[None]) -> Iterator[None]:
    """Inside the context, this thread waits for calls until `stop` has an exception, which is then raised here too."""
    _WAITING.stop = stop
    try:
        yield
    finally:
        _WAITING.stop = None


class PendingCall(Future[Result]):
    """The result of a call that runs elsewhere.

    If a signal interrupts the waiting caller, or the alarm or `calls_until` does, the call is interrupted before the
    exception propagates.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self.interrupt = interrupt

    def result(self, timeout: float | None = None) -> Result:
        alarm, stop = ALARM.rung, _WAITING.stop
        either: list[Future[Any]] = [self, alarm] if stop is None else [self, alarm, stop]
        try:
            wait(either, timeout, FIRST_COMPLETED)
            if stop is not None and stop.done() and not self.done():
                stop.result()
            if alarm.done() and not self.done():
                ALARM.silence()
                alarm.result()
            return super().result(0)
        except BaseException as error:
            if ALARM.is_for(error):
                ALARM.silence()
            if not self.done() and not isinstance(error, TimeoutError):
                self.interrupt()
            raise


class WorkerHandle(Protocol):
    """A worker, wherever it runs."""

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        ...

    def call(self, name: str, arguments: dict[str, Any], *, urgent: bool) -> PendingCall[Any]:
        """Start a method by its name, after the calls before it unless it is urgent."""
        ...


_SUBMITTING = threading.RLock()
"calls from several threads reach all workers of a pool in one order"


class WorkerGroup(Generic[Worker]):
    """The workers of one role. Each called method declares with `dispatch` what is split and merged."""

    def __init__(self, handles: Sequence[WorkerHandle], *, key: str = "", tensor_parallel: int = 1) -> None:
        """`key` names the group in the processes of its workers, `tensor_parallel` of which get the same rows."""
        assert handles, "a worker group has at least one worker"
        self._handles = tuple(handles)
        self._tensor_parallel = tensor_parallel
        self.key = key

    def run(
        self, method: Callable[Concatenate[Worker, Params], Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Future[Result]:
        """Call `method` (as `Worker.method`) on every worker; returns at once.

        `result()` of the future waits for all workers, or raises the exception of the first one that fails. Workers
        whose process has ended are left out.
        """
        declaration = dispatch_of(method)
        handles = [handle for handle in self._handles if handle.is_alive] or self._handles
        width = self._tensor_parallel if len(handles) == len(self._handles) else 1
        by_share, shares = split_arguments(arguments_of(method, args, kwargs), declaration, len(handles) // width)
        arguments = [own for own in by_share for _ in range(width)]
        with nullcontext() if declaration.urgent else _SUBMITTING:
            calls = [
                handle.call(method.__name__, own, urgent=declaration.urgent)
                for handle, own in zip(handles, arguments, strict=True)
            ]
        step = width if declaration.split else 1
        return calls[0] if len(calls) == 1 else _merged(calls, lambda all_: declaration.merge(all_[::step], shares))


def _merged(calls: Sequence[PendingCall[Any]], merge: Callable[[Sequence[Any]], Result]) -> Future[Result]:
    """The results of several calls as one."""

    def interrupt_all() -> None:
        for call in calls:
            call.interrupt()

    merged: PendingCall[Result] = PendingCall(interrupt_all)

    def check(call: Future[Any]) -> None:
        if merged.done():
            return
        error = call.exception()
        try:
            if error is not None:
                merged.set_exception(error)
            elif all(call.done() for call in calls):
                merged.set_result(merge([call.result() for call in calls]))
        except Exception as failure:
            if not merged.done():
                merged.set_exception(failure)

    for call in calls:
        call.add_done_callback(check)
    return merged


def interrupt(call: Future[Any] | None) -> None:
    """Interrupt a call that is running, if it is one."""
    if isinstance(call, PendingCall):
        call.interrupt()


def then(call: Future[Result], make: Callable[[Result], Made]) -> Future[Made]:
    """The result of `make` on the result of a call, computed in the thread that finishes the call."""
    made: PendingCall[Made] = PendingCall(partial(interrupt, call))

    def finish(call: Future[Result]) -> None:
        try:
            made.set_result(make(call.result()))
        except BaseException as error:
            made.set_exception(error)

    call.add_done_callback(finish)
    return made


Shares = list[list[int]]
"the rows of each worker, ascending"
Merge = Callable[[Sequence[Any], Shares], Any]
"the results of all workers and their shares to one result"
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The declaration of a worker method."""

    split: tuple[str, ...]
    "arguments that are divided by rows, all in the same way; every worker gets the others whole"
    merge: Merge
    urgent: bool
    "the call does not wait for the running one"
    takes_rows: bool
    "every worker gets all rows, and returns what it made of those that it has taken"


def dispatch(
    *, split: tuple[str, ...] = (), merge: Merge | None = None, urgent: bool = False, takes_rows: bool = False
) -> Callable[[Method], Method]:
    """Declare how a group calls a worker method.

    By default `in_order` merges the results of a method with split arguments, and `first` those of other methods.
    """

    def declare(method: Method) -> Method:
        declaration = Dispatch(split, merge or (in_order if split else first), urgent, takes_rows)
        method.__dispatch__ = declaration  # type: ignore[attr-defined]
        return method

    return declare


def dispatch_of(method: Callable[..., Any]) -> Dispatch:
    """The declaration of a worker method. Every method that a group calls has one."""
    declaration = getattr(method, "__dispatch__", None)
    assert isinstance(declaration, Dispatch), f"`{method.__qualname__}` has no `@dispatch`"
    return declaration


def arguments_of(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a worker method by name, without the worker."""
    names = list(inspect.signature(method).parameters)[1:] if args else []
    return dict(zip(names, args, strict=False)) | kwargs


def split_arguments(
    arguments: dict[str, Any], declaration: Dispatch, num_workers: int
) -> tuple[list[dict[str, Any]], Shares]:
    """The arguments of each worker, and its rows; a worker without rows gets empty arguments."""
    if num_workers == 1 or not declaration.split:
        return [arguments] * num_workers, [[] for _ in range(num_workers)]
    shares = balanced_shares(arguments[declaration.split[0]], num_workers)
    split = [{name: _pick(arguments[name], rows) for name in declaration.split} for rows in shares]
    return [arguments | own for own in split], shares


def balanced_shares(rows: Any, num_shares: int) -> Shares:
    """A batch or sequence in shares with about the same number of tokens.

    The rows of a group stay together. The largest remaining group goes to the share with the fewest tokens, so the
    result depends only on the groups and lengths. A share is empty if there are fewer groups than shares.
    """
    is_batch = isinstance(rows, Batch)
    groups = rows.groups.tolist() if is_batch else range(len(rows))
    weights = rows.sequence_lengths() if is_batch else [1] * len(rows)
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    sizes = {group: sum(weights[row] for row in own) for group, own in members.items()}
    shares: Shares = [[] for _ in range(num_shares)]
    loads = [0] * num_shares
    for group in sorted(members, key=lambda group: -sizes[group]):
        lightest = loads.index(min(loads))
        shares[lightest] += members[group]
        loads[lightest] += sizes[group]
    return [sorted(share) for share in shares]


def first(results: Sequence[Any], shares: Shares) -> Any:
    """The result of the first worker, for methods that return the same on all workers."""
    del shares
    return results[0]


def distinct(results: Sequence[Sequence[Any]], shares: Shares) -> list[Any]:
    """The items of all workers, each once."""
    del shares
    return list(dict.fromkeys(item for result in results for item in result))


def in_order(results: Sequence[Any], shares: Shares) -> Any:
    """Rows of all workers in the order of the caller: tensors, lists, and dictionaries of them.

    `[b, T]` tensors of different widths are padded with zeros on the right. A list may hold several items per row.
    """
    if len(results) == 1:
        return results[0]
    if isinstance(results[0], dict):
        return {name: in_order([result[name] for result in results], shares) for name in results[0]}
    order = [row for rows in shares for row in rows]
    if isinstance(results[0], Tensor):
        width = max(result.shape[1] for result in results)
        padded = [torch.nn.functional.pad(result, (0, width - result.shape[1])) for result in results]
        return torch.cat(padded)[torch.tensor(order).argsort()]
    items = [item for result in results for item in result]
    per_row = len(items) // max(1, len(order))
    placed = [(row * per_row + offset) for row in order for offset in range(per_row)]
    return [item for _, item in sorted(zip(placed, items, strict=True), key=lambda pair: pair[0])]


def _pick(value: Any, rows: Sequence[int]) -> Any:
    return value.select(rows) if isinstance(value, Batch) else [value[row] for row in rows]
