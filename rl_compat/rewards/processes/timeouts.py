"""Functions with a time limit: each runs in a process that can be killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from rl_compat.errors import ConfigError
from rl_compat.rewards.processes.custom import Call, failed
from rl_compat.rewards.processes.worker import Load, Ready, Work, timeout_message
from rl_compat.rewards.types import RewardOutcome

LOAD_SECONDS = 120.0
"time limit for importing the user's file"
GRACE_SECONDS = 2.0
"time on top of the limit that overlapping calls enforce themselves"

MAX_DELAY = 10.0
"time that waiting for a processor adds to a limit at most, in limits"
SHORTEST_WAIT_SECONDS = 0.01

_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from rl_compat.rewards.processes.worker import main; main(int(sys.argv[1]))"
)


class FunctionProcesses:
    """A function in `num_processes` processes that can be killed. A batched function runs in a single process."""

    def __init__(
        self,
        file: Path | None,
        name: str,
        *,
        arguments: Mapping[str, str],
        timeout_seconds: float,
        num_processes: int = 1,
    ) -> None:
        """Start the processes. `file` is None for a built-in reward. Raises ConfigError for an unusable function."""
        self._functions: list[TimedFunction] = []
        try:
            while len(self._functions) < num_processes:
                function = TimedFunction(file, name, arguments=arguments, timeout_seconds=timeout_seconds)
                self._functions.append(function)
                if function.batched:
                    break
        except BaseException:
            self.close()
            raise

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the user's arguments that the function accepts."""
        return self._functions[0].arguments

    def outcomes(self, calls: Sequence[Call]) -> list[RewardOutcome]:
        """One outcome per call, in order."""
        number = min(len(self._functions), len(calls))
        if number <= 1:
            return self._functions[0].outcomes(calls)
        shares = [calls[i::number] for i in range(number)]
        threads = ThreadPoolExecutor(number)
        try:
            answers = list(threads.map(TimedFunction.outcomes, self._functions[:number], shares))
        except BaseException:
            for function in self._functions:
                function.abandon()
            raise
        finally:
            threads.shutdown()
        return [answers[i % number][i // number] for i in range(len(calls))]

    def close(self) -> None:
        """End the processes and their child processes."""
        for function in self._functions:
            function.close()


class TimedFunction:
    """A function in a process that can be killed. Any thread can use it, one at a time."""

    def __init__(self, file: Path | None, name: str, *, arguments: Mapping[str, str], timeout_seconds: float) -> None:
        """Start the process and load the function. `file` is None for a built-in reward.

        Raises ConfigError if the function cannot be used.
        """
        self.name = name
        self._load = Load(file=file, name=name, arguments=dict(arguments), timeout_seconds=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._abandoned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = self._start()

    @property
    def batched(self) -> bool:
        """Whether the function is called once with all responses."""
        return self._ready.batched

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the user's arguments that the function accepts."""
        return self._ready.arguments

    def outcomes(self, calls: Sequence[Call]) -> list[RewardOutcome]:
        """One outcome per call, in order. A call over the limit is stopped and the others continue."""
        with self._lock:
            done: dict[int, RewardOutcome] = {}
            one_by_one = not self._ready.concurrent
            try:
                while len(done) < len(calls):
                    assert not self._abandoned, "an abandoned function is not called again"
                    pending = [i for i in range(len(calls)) if i not in done]
                    done |= self._attempt(calls, pending, one_by_one=one_by_one)
                    one_by_one = True
            except BaseException:
                self._kill()
                raise
            return [done[i] for i in range(len(calls))]

    def abandon(self) -> None:
        """End the process while another thread waits for its results."""
        self._abandoned = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and its child processes. A call that waits in another thread fails."""
        self.abandon()
        with self._lock:
            self._kill()

    def _attempt(self, calls: Sequence[Call], pending: Sequence[int], *, one_by_one: bool) -> dict[int, RewardOutcome]:
        """Outcomes until all are complete or the process must be killed, in which case the call at fault fails."""
        if self._connection is None:
            self._ready = self._start()
        assert self._connection is not None
        done: dict[int, RewardOutcome] = {}
        fault = None
        try:
            self._connection.send(Work(calls=tuple(calls[i] for i in pending), one_by_one=one_by_one))
            limit = self._limit_seconds(len(pending), one_by_one=one_by_one)
            announces = one_by_one or self._ready.batched
            running = not announces
            while len(done) < len(pending):
                if not self._hears_within(limit if running else LOAD_SECONDS):
                    fault = "timeout"
                    break
                position, outcome = self._connection.recv()
                running = outcome is None or self._ready.batched or not announces
                if outcome is not None:
                    done[pending[position]] = outcome
        except (EOFError, ConnectionError):
            fault = "ended"
        if fault is None:
            return done
        exit_code = self._exit_code() if fault == "ended" else None
        self._kill()
        for index in self._at_fault([i for i in pending if i not in done], one_by_one=one_by_one):
            done[index] = self._failure(calls[index], fault=fault, exit_code=exit_code)
        return done

    def _hears_within(self, seconds: float) -> bool:
        """Whether the process sends something in time; time in which it waits for a processor is added."""
        assert self._connection is not None and self._process is not None
        started, waited = time.monotonic(), _seconds_without_processor(self._process.pid)
        remaining = seconds
        while remaining > SHORTEST_WAIT_SECONDS:
            if self._connection.poll(remaining):
                return True
            delay = _seconds_without_processor(self._process.pid) - waited
            remaining = started + seconds + min(delay, MAX_DELAY * seconds) - time.monotonic()
        return self._connection.poll(0)

    def _at_fault(self, unanswered: Sequence[int], *, one_by_one: bool) -> Sequence[int]:
        """The call that was running, or all calls of a batch. Among overlapping calls it is unknown, hence none."""
        if self._ready.batched:
            return unanswered
        return unanswered[:1] if one_by_one else ()

    def _limit_seconds(self, num_calls: int, *, one_by_one: bool) -> float:
        if self._ready.batched:
            return self._timeout_seconds * num_calls
        return self._timeout_seconds if one_by_one else self._timeout_seconds + GRACE_SECONDS

    def _failure(self, call: Call, *, fault: str, exit_code: int | None) -> RewardOutcome:
        if fault == "timeout":
            return failed(timeout_message(self.name, call.row, self._timeout_seconds), kind="timeout")
        return failed(f"the process of `{self.name}` ended with code {exit_code} on row {call.row}", kind="died")

    def _start(self) -> Ready:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._connection = ours
        try:
            return self._first_answer(ours)
        except BaseException:
            self._kill()
            raise

    def _first_answer(self, connection: Connection) -> Ready:
        imported = self._load.file or self.name
        try:
            connection.send(self._load)
            if not connection.poll(LOAD_SECONDS):
                raise ConfigError(f"importing `{imported}` took longer than {LOAD_SECONDS:g} s")
            answer: Ready | ConfigError = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ConfigError(f"the process that imports `{imported}` exited") from error
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def _exit_code(self) -> int | None:
        """The exit code of a process that closed its connection, None if it still runs."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return None

    def _kill(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is None or connection is None:
            return
        connection.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _seconds_without_processor(pid: int) -> float:
    """Time in which the main thread of a process was ready to run but had no processor; 0 if the system hides it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
