"""The workers of one role, called as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from rl_compat.distributed.dispatch import arguments_of, dispatch_of, split_arguments

Worker = TypeVar("Worker", covariant=True)
Params = ParamSpec("Params")
Result = TypeVar("Result")
Made = TypeVar("Made")


class PendingCall(Future[Result]):
    """The result of a call that runs elsewhere.

    If a signal interrupts the waiting caller, the call is interrupted before the signal's exception propagates.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self.interrupt = interrupt

    def result(self, timeout: float | None = None) -> Result:
        try:
            return super().result(timeout)
        except BaseException as error:
            if not isinstance(error, Exception) and not self.done():
                self.interrupt()
            raise


class WorkerHandle(Protocol):
    """A worker, wherever it runs."""

    def call(self, name: str, arguments: dict[str, Any], *, urgent: bool) -> PendingCall[Any]:
        """Start a method by its name, after the calls before it unless it is urgent."""
        ...


class WorkerGroup(Generic[Worker]):
    """The workers of one role. Each called method declares with `dispatch` what is split and merged."""

    def __init__(self, handles: Sequence[WorkerHandle]) -> None:
        assert handles, "a worker group has at least one worker"
        self._handles = tuple(handles)

    def run(
        self, method: Callable[Concatenate[Worker, Params], Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Future[Result]:
        """Call `method` (as `Worker.method`) on every worker; returns at once.

        `result()` of the future waits for all workers, or raises the exception of the first one that fails.
        """
        declaration = dispatch_of(method)
        arguments, shares = split_arguments(arguments_of(method, args, kwargs), declaration, len(self._handles))
        calls = [
            handle.call(method.__name__, own, urgent=declaration.urgent)
            for handle, own in zip(self._handles, arguments, strict=True)
        ]
        return calls[0] if len(calls) == 1 else _merged(calls, lambda results: declaration.merge(results, shares))


def _merged(calls: Sequence[PendingCall[Any]], merge: Callable[[Sequence[Any]], Result]) -> Future[Result]:
    """The results of several calls as one."""

    def interrupt() -> None:
        for call in calls:
            call.interrupt()

    merged: PendingCall[Result] = PendingCall(interrupt)

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


def then(call: Future[Result], make: Callable[[Result], Made]) -> Future[Made]:
    """The result of `make` on the result of a call, computed in the thread that finishes the call."""
    made: PendingCall[Made] = PendingCall(call.interrupt if isinstance(call, PendingCall) else lambda: None)

    def finish(call: Future[Result]) -> None:
        try:
            made.set_result(make(call.result()))
        except BaseException as error:
            made.set_exception(error)

    call.add_done_callback(finish)
    return made
