"""Stages of a program that work at the same time, in start order and within a bound on staleness."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from rl_compat.distributed.group import CallsStopped, calls_until
from rl_compat.distributed.local import as_this_thread
from rl_compat.errors import ConfigError, check_type

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Next = TypeVar("Next")
Part = TypeVar("Part")

ROUNDING = 1e-9
"of the sum of the loads of a step"


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


class Buffer(Stage[Sequence[Part], list[Part]]):
    """Before the last stage: divides what the stages before it make into steps of about the same load.

    The stage before returns the parts of its item, such as the groups of a rollout. The last stage gets a list of
    parts, in start order: as many as together have a load of at most 1, and at least one. Where a part would be older
    than the bound at the next step, the step takes it although it is full.
    """

    def __init__(self, *, load: Callable[[Part], float] | None = None, drops: bool = False) -> None:
        """`load` is the share of a step that a part fills; without it, each part is a step.

        `drops` says what happens when as many items have started as the bound allows: by default the next one waits,
        else it takes the place of the oldest one that nobody has begun to learn from, whose parts are dropped.
        """
        super().__init__(list, name="buffer")
        self.load = load
        self.drops = drops


@dataclass(slots=True, eq=False)
class _Started:
    """An item between its start and the step that takes its last part."""

    version: int
    "number of steps that were finished when it started"
    parts: deque[tuple[Any, float]] | None = None
    "those that no step has taken, each with its load; None until they are made"

    @property
    def load(self) -> float:
        """That of a step, until it is known."""
        return 1.0 if self.parts is None else sum(load for _, load in self.parts)


class DataFlow:
    """Runs the items of a source through a line of stages: the last stage in the caller's thread, others in their own.

    With `staleness` S, an item starts when the last stage has finished all but S of the items before it, and asks for
    the next. With 0 the stages take turns. Items keep their order, at most S + 1 exist at a time, and none is dropped
    unless a `Buffer` before the last stage does so. An error in a stage, or a signal in the caller's thread, stops all
    stages, and `run` raises it.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        "that the last stage has waited for its items"
        self.dropped: list[Any] = []
        "the parts that were dropped between those of the last stage's item and those of the one before"
        self._stages: tuple[Stage[Any, Any], ...] = ()
        self._buffer: Buffer[Any] | None = None
        self._staleness = 0
        self._changed = threading.Condition()
        "held to read or change what follows"
        self._source: Iterator[Any] = iter(())
        self._num_steps: int | None = None
        "that the last stage has finished when it asks for its next item; None before it asks for the first"
        self._num_taken: list[int] = []
        "by stage"
        self._ready: list[dict[int, Any]] = []
        "by stage, without the last: the items that it can take, by number"
        self._started: dict[int, _Started] = {}
        "by number, in this order"
        self._has_advanced = False
        "whether `advance` was called for the item of the last stage"
        self._load_learned = 0.0
        "of the parts that the last stage has"
        self._evicted: list[Any] = []
        "parts that were dropped since the last stage took its item"
        self._end: int | None = None
        "number of items, once no further one starts"
        self._is_paused = False
        self._is_stopped = False
        self._error: BaseException | None = None

    def connect(self, line: Stage[Any, Any], *, staleness: int = 0) -> Self:
        """Use a line such as `rollout >> learner` or `rollout >> buffer >> learner`.

        Raises ConfigError for a negative `staleness`, and for a `Buffer` that is not the last stage but one.
        """
        check_type("line", line, Stage, hint="use `Stage(function) >> Stage(function)`")
        self._stages, self._buffer, self._staleness = line.line, None, _at_least(0, "staleness", staleness)
        if len(line.line) > 1 and isinstance(line.line[-2], Buffer):
            self._stages, self._buffer = (*line.line[:-2], line.line[-1]), line.line[-2]
        if len(self._stages) == 1:
            self._stages = (Stage(lambda item: item), *self._stages)
        if any(isinstance(stage, Buffer) for stage in self._stages):
            raise ConfigError(
                "a `Buffer` is between two stages, before the last one", hint="rollout >> buffer >> learner"
            )
        return self

    def run(self, source: Iterable[Any], *, goes_on: Callable[[], bool] | None = None) -> None:
        """Run the items through the stages until the source ends, `stop` is called, or `goes_on` returns False.

        `goes_on`, if given, is called before each item of the last stage, in the caller's thread. Raises ConfigError
        without stages, and what a stage or the source raises.
        """
        if not self._stages:
            raise ConfigError("the flow has no stages", hint="use `connect(rollout >> learner)`")
        self._source = iter(source)
        self._num_taken, self._ready = [0 for _ in self._stages], [{} for _ in self._stages]
        self._started, self._num_steps, self._load_learned, self._evicted = {}, None, 0.0, []
        self._has_advanced = False
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
        try:
            while not self._is_stopped and (goes_on is None or goes_on()):
                start = time.perf_counter()
                parts = self._take_step()
                self.wait_seconds += time.perf_counter() - start
                if not parts:
                    break
                self._stages[-1].function(parts if self._buffer else parts[0])
            if self._error is not None:
                raise self._error
        finally:
            self.stop()
            stopped.set_exception(CallsStopped())
            for thread in threads:
                thread.join()

    def advance(self) -> None:
        """Let the next item start as if the last stage had finished its own, which it may still be busy with."""
        with self._changed:
            if not self._has_advanced:
                self._num_steps, self._load_learned = 0 if self._num_steps is None else self._num_steps + 1, 0.0
                self._has_advanced = True
                self._changed.notify_all()

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
                        if position + 2 < len(self._stages):
                            self._ready[position + 1][number] = made
                        else:
                            self._keep(number, made)
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                if not self._is_stopped:
                    self._error, self._is_stopped = error, True
                self._changed.notify_all()

    def _keep(self, number: int, made: Any) -> None:
        """Hold what the stages before the last have made of an item."""
        buffer = self._buffer
        parts = deque(
            [(made, 1.0)]
            if buffer is None
            else [(part, 1.0 if buffer.load is None else buffer.load(part)) for part in made]
        )
        if parts:
            self._started[number].parts = parts
        else:
            del self._started[number]

    def _take(self, position: int) -> tuple[int, Any] | None:
        """The next item of a stage, with its number; None after the last one and once the flow has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._is_next_there(position))
            number = self._num_taken[position]
            if self._is_stopped or number == self._end:
                return None
            if position > 0:
                item = self._ready[position].pop(number)
            else:
                try:
                    item = next(self._source)
                except StopIteration:
                    self._end = number
                    self._changed.notify_all()
                    return None
                for _ in range(self._num_dropped() or 0):
                    oldest = self._started.pop(next(iter(self._started)))
                    self._evicted += [part for part, _ in oldest.parts or ()]
                self._started[number] = _Started(version=self._num_steps or 0)
            self._num_taken[position] += 1
            return number, item

    def _is_next_there(self, position: int) -> bool:
        number = self._num_taken[position]
        if number == self._end:
            return True
        if position > 0:
            return number in self._ready[position]
        return not self._is_paused and self._num_dropped() is not None

    def _num_dropped(self) -> int | None:
        """How many of the oldest items are dropped if another one starts; None if none may start.

        Only while the last stage works, and not the newest one that is made, so that it never waits for what takes
        their place.
        """
        steps = self._staleness + (self._num_steps is not None)
        items = list(self._started.values())
        load = self._load_learned + sum(item.load for item in items)
        drops = self._buffer is not None and self._buffer.drops and self._load_learned > 0
        for count, item in enumerate(items):
            if load < steps - ROUNDING:
                return count
            if not drops or any(other.parts is None for other in items[count : count + 2]) or item is items[-1]:
                return None
            load -= item.load
        return len(items) if load < steps - ROUNDING else None

    def _take_step(self) -> list[Any]:
        """The parts of the next step of the last stage; an empty list after the last one."""
        self.advance()
        with self._changed:
            self._has_advanced = False
            self._changed.wait_for(lambda: self._is_stopped or self._is_ended() or self._size_of_step())
            if self._is_stopped or self._is_ended():
                return []
            taken: list[Any] = []
            for _ in range(self._size_of_step()):
                number = next(iter(self._started))
                parts = self._started[number].parts
                assert parts
                part, load = parts.popleft()
                taken.append(part)
                self._load_learned += load
                if not parts:
                    del self._started[number]
            self.dropped, self._evicted = self._evicted, []
            return taken

    def _is_ended(self) -> bool:
        return self._num_taken[0] == self._end and not self._started

    def _size_of_step(self) -> int:
        """The number of parts of the next step; 0 while one of them, or one that would still fit, is not made."""
        count, load = 0, 0.0
        for item in self._started.values():
            is_due = item.version + self._staleness <= (self._num_steps or 0)
            if not is_due and load >= 1 - ROUNDING:
                return count
            if item.parts is None:
                return 0
            for _, more in item.parts:
                if count and not is_due and load + more > 1 + ROUNDING:
                    return count
                count, load = count + 1, load + more
        return count if load >= 1 - ROUNDING or self._num_taken[0] == self._end else 0


def ahead(items: Iterable[In]) -> Iterator[In]:
    """The same items, each of which another thread makes while the one before it is in use."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1, thread_name_prefix="data") as threads:
        coming = threads.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = threads.submit(next, iterator, end)
            yield cast(In, item)


def _at_least(lowest: int, name: str, value: int) -> int:
    check_type(name, value, int)
    if value < lowest:
        raise ConfigError(f"`{name}` is {value}, expected at least {lowest}")
    return value
