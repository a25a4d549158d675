"""The process of a function: it loads the function, answers calls, and ends with its parent."""

from __future__ import annotations

import asyncio
import faulthandler
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.table import find_builtin
from rl_compat.rewards.processes.custom import Call, CustomFunction, failed, load_function
from rl_compat.rewards.types import Failure, RewardOutcome

MAX_CONCURRENT = 64
ORPHAN_SECONDS = 10.0
"time on top of its limit after which a call that holds the interpreter lock is stopped if the parent is gone"
PARENT_SECONDS = 1.0
"interval between checks that the parent is alive"
BUILTIN_BYTES = 4 * 2**30
"address space of a built-in reward, so that `10^{10^{10}}` cannot use up the memory of the machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The function to load, sent once."""

    file: Path | None
    "None for a built-in reward"
    name: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The answer to `Load` if the function can be used; otherwise it is a ConfigError."""

    batched: bool
    concurrent: bool
    arguments: tuple[str, ...]
    "names of the user's arguments that the function accepts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Calls to answer."""

    calls: tuple[Call, ...]
    one_by_one: bool
    "run calls of a coroutine function one after the other"
    limit_seconds: float
    "of each call"


@dataclass(slots=True)
class CallLimit:
    """The time limit of a call. Once one has hung, it is a tenth, at least 1 s and ten times the longest that returned.

    It never exceeds `most`.
    """

    most: float
    longest: float = 0.0
    "seconds of the longest call that returned"
    hung: bool = False

    @property
    def seconds(self) -> float:
        return min(self.most, max(self.most / 10, 1.0, 10 * self.longest)) if self.hung else self.most

    def count(self, outcome: RewardOutcome, seconds: float) -> None:
        """Take note of a call that ended."""
        if outcome.failure is not None and outcome.failure.kind == "timeout":
            self.hung = True
        else:
            self.longest = max(self.longest, seconds)


def main(file_descriptor: int) -> None:
    """Serve until the other end of the socket closes. Output of the user's code goes to stderr."""
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with Connection(file_descriptor) as connection, suppress(EOFError, ConnectionError):
        load: Load = connection.recv()
        try:
            function = _load(load)
        except ConfigError as error:
            connection.send(error)
            return
        connection.send(
            Ready(batched=function.batched, concurrent=function.concurrent, arguments=tuple(function.arguments))
        )
        serve(connection, function)


def _load(load: Load) -> CustomFunction:
    if load.file is not None:
        return load_function(load.file, load.name, load.arguments)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (BUILTIN_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return load_builtin(load.name, load.arguments)


def load_builtin(name: str, arguments: Mapping[str, str]) -> CustomFunction:
    """The built-in reward with its arguments bound. It is called once, so that its imports count against no limit.

    Raises ConfigError if the arguments cannot be used.
    """
    builtin = find_builtin(name)
    bound = builtin.bind(name, arguments)

    def score(solution_str: str, ground_truth: Any) -> RewardOutcome:
        try:
            return builtin.function(solution_str, ground_truth, **bound)
        except (MemoryError, RecursionError) as error:
            failure = Failure(kind="error", message=f"`{name}` failed on a response: {type(error).__name__}")
            return RewardOutcome(reward=builtin.wrong, correct=False, failure=failure)

    try:
        score("1", "2")
    except ValueError as error:
        raise ConfigError(f"the reward `{name}` cannot be used: {error}") from error
    return CustomFunction(
        name=name,
        file=Path(__file__),
        function=score,
        arguments={},
        accepted=("solution_str", "ground_truth"),
        batched=False,
        concurrent=False,
    )


def serve(connection: Connection, function: CustomFunction) -> None:
    """Answer each Work with one (position, outcome) per call. Raises EOFError if the other end closes.

    (position, None) announces a call, or a batch of them, whose time the other end limits.
    """
    process = os.getpid()

    def send(position: int, outcome: RewardOutcome | None) -> None:
        if os.getpid() != process:  # the function has forked, and this is its child
            os._exit(0)
        connection.send((position, outcome))

    while True:
        work: Work = connection.recv()
        limit = work.limit_seconds
        if function.batched:
            send(0, None)
            with _deadline(limit * len(work.calls)):
                outcomes = function.score_batch(work.calls)
            for position, outcome in enumerate(outcomes):
                send(position, outcome)
        elif function.concurrent and not work.one_by_one:
            num_waves = math.ceil(len(work.calls) / MAX_CONCURRENT)
            with _deadline(limit * num_waves):
                asyncio.run(_concurrent(send, function, work.calls, CallLimit(limit)))
        else:
            for position, call in enumerate(work.calls):
                send(position, None)
                with _deadline(limit):
                    outcome = function.score(call)
                send(position, outcome)


def _end_with_parent(parent: int) -> None:
    """End this process and its child processes if the parent is gone, since a killed parent cannot do it."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    kill_tree(os.getpid())


def kill_tree(pid: int) -> None:
    """Kill a process that leads a session, and its descendants, also those that have started another session."""
    descendants = list(_descendants(pid))
    for end, target in (*((os.kill, child) for child in descendants), (os.killpg, pid)):
        with suppress(ProcessLookupError, PermissionError):
            end(target, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """End this process if a call runs far over its limit, even if it holds the interpreter lock."""
    with Path(os.devnull).open("w") as sink:
        faulthandler.dump_traceback_later(seconds + ORPHAN_SECONDS, exit=True, file=sink)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


async def _concurrent(
    send: Callable[[int, RewardOutcome], None], function: CustomFunction, calls: Sequence[Call], limit: CallLimit
) -> None:
    places = asyncio.Semaphore(MAX_CONCURRENT)

    async def answer(position: int, call: Call) -> None:
        async with places:
            started = time.monotonic()
            outcome = await _overlapping(function, call, limit.seconds)
            limit.count(outcome, time.monotonic() - started)
            send(position, outcome)

    await asyncio.gather(*(answer(position, call) for position, call in enumerate(calls)))


async def _overlapping(function: CustomFunction, call: Call, seconds: float) -> RewardOutcome:
    try:
        async with asyncio.timeout(seconds) as limit:
            return function.outcome(await function.call(call), call)
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return failed(timeout_message(function.name, call.row, seconds), kind="timeout")
        return function.crashed(error, call)


def timeout_message(name: str, row: int, timeout_seconds: float) -> str:
    """The message for a call that was stopped."""
    return f"`{name}` did not return for row {row} within {timeout_seconds:g} s"


if __name__ == "__main__":
    main(int(sys.argv[1]))
