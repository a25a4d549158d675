"""Stages of a program that work at the same time, in start order and within a bound on staleness."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Self, TypeVar

from rl_compat.distributed.group import CallsStopped, calls_until
from rl_compat.distributed.local import as_this_thread
from rl_compat.errors import ConfigError, check_type

In = TypeVar("In")
Out = TypeVar("Out")
Next = TypeVar("Next")


class Stage(Generic[In, Out]):
    """A function that makes the next stage's item from its own, and how many of its calls run at the same time.

    `rollout >> learner` is a line of stages: each gets what the one before it returns.
    """

    def __init__(self, function: Callable[[In], Out], *, name: str = "stage", calls: int = 1) -> None:
        """`name` is that of its threads. Raises ConfigError for a number of `calls` below 1."""
        self.function = function
        self.name = name
        self.calls = _at_least(1, "calls", calls)
        self.line: tuple[Stage[Any, Any], ...] = (self,)
        "the stages of the line that ends here"

    def __rshift__(self, after: Stage[Out, Next]) -> Stage[In, Next]:
        check_type("what follows `>>`", after, Stage, hint="wrap a function: `Stage(function)`")
        joined: Stage[In, Next] = Stage.__new__(Stage)
        joined.__dict__.update(after.__dict__, line=(*self.line, *after.line))
        return joined


class DataFlow:
    """Runs the items of a source through a line of stages: the last stage in the caller's thread, others in their own.

    With `staleness` S, an item starts when the last stage has finished all but S of the items before it, and asks for
    the next. With 0 the stages take turns. Items keep their order, none is dropped, and at most S + 1 exist at a time.
    An error in a stage, or a signal in the caller's thread, stops all stages, and `run` raises it.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        "that the last stage has waited for its items"
        self._stages: tuple[Stage[Any, Any], ...] = ()
        self._staleness = 0
        self._changed = threading.Condition()
        "held to read or change what follows"
        self._source: Iterator[Any] = iter(())
        self._num_wanted = 0
        self._num_taken: list[int] = []
        "by stage"
        self._ready: list[dict[int, Any]] = []
        "by stage: the items that it can take, by number"
        self._end: int | None = None
        "number of items, once no further one starts"
        self._is_paused = False
        self._is_stopped = False
        self._error: BaseException | None = None

    def connect(self, line: Stage[Any, Any], *, staleness: int = 0) -> Self:
        """Use a line such as `rollout >> learner`. Raises ConfigError for a negative `staleness`."""
        check_type("line", line, Stage, hint="use `Stage(function) >> Stage(function)`")
        self._stages, self._staleness = line.line, _at_least(0, "staleness", staleness)
        return self

    def run(self, source: Iterable[Any], *, goes_on: Callable[[], bool] | None = None) -> None:
        """Run the items through the stages until the source ends, `stop` is called, or `goes_on` returns False.

        `goes_on`, if given, is called before each item of the last stage, in the caller's thread. Raises ConfigError
        without stages, and what a stage or the source raises.
        """
        if not self._stages:
            raise ConfigError("the flow has no stages", hint="use `connect(rollout >> learner)`")
        self._source = iter(source)
        self._num_wanted, self._num_taken, self._ready = 0, [0 for _ in self._stages], [{} for _ in self._stages]
        self._end, self._error, self._is_stopped = None, None, False
        stopped: Future[None] = Future()
        threads = [
            threading.Thread(
                target=as_this_thread(partial(self._serve, position, stopped)),
                name=stage.name if stage.calls == 1 else f"{stage.name}-{number}",
                daemon=True,
            )
            for position, stage in enumerate(self._stages[:-1])
            for number in range(stage.calls)
        ]
        for thread in threads:
            thread.start()
        last = len(self._stages) - 1
        try:
            while not self._is_stopped and (goes_on is None or goes_on()):
                with self._changed:
                    self._num_wanted += 1
                    self._changed.notify_all()
                start = time.perf_counter()
                taken = self._take(last)
                self.wait_seconds += time.perf_counter() - start
                if taken is None:
                    break
                self._stages[last].function(taken[1])
            if self._error is not None:
                raise self._error
        finally:
            self.stop()
            stopped.set_exception(CallsStopped())
            for thread in threads:
                thread.join()

    def pause(self) -> None:
        """Let no item start until `resume`; those that have started go on."""
        with self._changed:
            self._is_paused = True

    def resume(self) -> None:
        """Let items start again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def drain(self) -> None:
        """Let no further item start; `run` returns when those that have started are through all stages."""
        with self._changed:
            self._end = self._num_taken[0]
            self._changed.notify_all()

    def stop(self) -> None:
        """End `run` after the running item of the last stage; items in other stages are dropped."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _serve(self, position: int, stopped: Future[None]) -> None:
        """Run calls of a stage, in one of its threads."""
        try:
            with calls_until(stopped):
                while (taken := self._take(position)) is not None:
                    number, item = taken
                    made = self._stages[position].function(item)
                    with self._changed:
                        self._ready[position + 1][number] = made
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                if not self._is_stopped:
                    self._error, self._is_stopped = error, True
                self._changed.notify_all()

    def _take(self, position: int) -> tuple[int, Any] | None:
        """The next item of a stage, with its number; None after the last one and once the flow has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._is_next_there(position))
            number = self._num_taken[position]
            if self._is_stopped or number == self._end:
                return None
            if position == 0:
                try:
                    item = next(self._source)
                except StopIteration:
                    self._end = number
                    self._changed.notify_all()
                    return None
            else:
                item = self._ready[position].pop(number)
            self._num_taken[position] += 1
            return number, item

    def _is_next_there(self, position: int) -> bool:
        number = self._num_taken[position]
        if number == self._end:
            return True
        if position > 0:
            return number in self._ready[position]
        return not self._is_paused and number < self._num_wanted + self._staleness


def _at_least(lowest: int, name: str, value: int) -> int:
    check_type(name, value, int)
    if value < lowest:
        raise ConfigError(f"`{name}` is {value}, expected at least {lowest}")
    return value
