"""Functions with a time limit: each runs in a process that can be killed and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

from rl_compat.errors import ConfigError
from rl_compat.rewards.processes.custom import Call, failed
from rl_compat.rewards.processes.worker import CallLimit, Load, Ready, Work, kill_tree, timeout_message
from rl_compat.rewards.types import RewardOutcome

LOAD_SECONDS = 120.0
"time limit for importing the user's file"
GRACE_SECONDS = 2.0
"time on top of the limit that overlapping calls enforce themselves"

MAX_DELAY = 10.0
"time that waiting for a processor adds to a limit at most, in limits"
SHORTEST_WAIT_SECONDS = 0.01
MOST_LOST, LEAST_LOST_SECONDS = 4.0, 20.0
"time that stopped calls and restarts may take in a step, in limits of a call; the other calls are then not made"
SHOWN_BYTES = 2**16
"output of a process that is shown per step"

_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from rl_compat.rewards.processes.worker import main; main(int(sys.argv[1]))"
)
Stops = Callable[[RewardOutcome], bool]
"whether an outcome ends the run, so that no further call is worth its time"


class StopsRunError(Exception):
    """An outcome ends the run."""

    def __init__(self, outcome: RewardOutcome) -> None:
        super().__init__(outcome.failure)
        self.outcome = outcome


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
                if function.ready.batched:
                    break
        except BaseException:
            self.close()
            raise

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the user's arguments that the function accepts."""
        return self._functions[0].ready.arguments

    @property
    def is_batched(self) -> bool:
        """Whether the function is called once with all responses."""
        return self._functions[0].ready.batched

    def outcomes(self, calls: Sequence[Call], *, stops: Stops) -> list[RewardOutcome]:
        """One outcome per call, in order. If one `stops`, it ends the other calls and stands for all of them."""
        functions = self._functions[: len(calls)]
        number = len(functions)
        if not calls:
            return []
        with ThreadPoolExecutor(number) as threads:
            shares = [
                threads.submit(function.outcomes, calls[i::number], stops=stops) for i, function in enumerate(functions)
            ]
            try:
                for share in as_completed(shares):
                    share.result()
            except StopsRunError as stopped:
                for function in functions:
                    function.kill()
                return [stopped.outcome] * len(calls)
            except BaseException:
                for function in self._functions:
                    function.abandon()
                raise
        return [shares[i % number].result()[i // number] for i in range(len(calls))]

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
        self._load = Load(file=file, name=name, arguments=dict(arguments))
        self._limit = CallLimit(timeout_seconds)
        self._lost_seconds = 0.0
        self._shown_bytes = 0
        self._lock = threading.Lock()
        self._abandoned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.ready = self._start()
        "how the function is called"

    def outcomes(self, calls: Sequence[Call], *, stops: Stops = lambda outcome: False) -> list[RewardOutcome]:
        """One outcome per call, in order. A call over the limit is stopped and the others continue.

        Once stopped calls of a custom function have taken MOST_LOST limits, the others fail without a call. Raises
        StopsRunError at the first outcome that `stops`.
        """
        with self._lock:
            done: dict[int, RewardOutcome] = {}
            one_by_one = not self.ready.concurrent
            self._lost_seconds = self._shown_bytes = 0
            try:
                while len(done) < len(calls):
                    assert not self._abandoned, "an abandoned function is not called again"
                    pending = [i for i in range(len(calls)) if i not in done]
                    lost, most = self._lost_seconds, max(MOST_LOST * self._limit.most, LEAST_LOST_SECONDS)
                    if self._load.file is not None and lost > most:
                        message = f"`{self.name}` was not called again: stopped calls took {lost:.0f} s"
                        done |= {i: failed(message, kind="timeout") for i in pending}
                        break
                    done |= self._attempt(calls, pending, one_by_one=one_by_one, stops=stops)
                    one_by_one = True
            except BaseException:
                self._kill()
                raise
            return [done[i] for i in range(len(calls))]

    def kill(self) -> None:
        """End the process, also while another thread waits for its results. The next call starts a new one."""
        process = self._process
        if process is not None:
            kill_tree(process.pid)

    def abandon(self) -> None:
        """End the process while another thread waits for its results. It is not called again."""
        self._abandoned = True
        self.kill()

    def close(self) -> None:
        """End the process and its child processes. A call that waits in another thread fails."""
        self.abandon()
        with self._lock:
            self._kill()

    def _attempt(
        self, calls: Sequence[Call], pending: Sequence[int], *, one_by_one: bool, stops: Stops
    ) -> dict[int, RewardOutcome]:
        """Outcomes until all are complete or the process must be killed, in which case the call at fault fails."""
        started = time.monotonic()
        if self._connection is None:
            self.ready = self._start()
            self._lost_seconds += time.monotonic() - started
        assert self._connection is not None
        done: dict[int, RewardOutcome] = {}
        fault = None
        announces = one_by_one or self.ready.batched
        started, running = time.monotonic(), not announces
        limit = self._limit.seconds
        try:
            self._connection.send(
                Work(calls=tuple(calls[i] for i in pending), one_by_one=one_by_one, limit_seconds=limit)
            )
            while len(done) < len(pending):
                wait = self._wait_seconds(limit, len(pending), one_by_one=one_by_one) if running else LOAD_SECONDS
                if not self._hears_within(wait):
                    fault = "timeout"
                    break
                position, outcome = self._connection.recv()
                if outcome is None:
                    started, running = time.monotonic(), True
                    continue
                running = self.ready.batched or not announces
                done[pending[position]] = outcome
                self._limit.count(outcome, time.monotonic() - started)
                if stops(outcome):
                    raise StopsRunError(outcome)
        except (EOFError, ConnectionError):
            fault = "ended"
        if fault is None:
            return done
        exit_code = self._exit_code() if fault == "ended" else None
        self._kill()
        self._lost_seconds += time.monotonic() - started
        self._limit.hung |= fault == "timeout"
        for index in self._at_fault([i for i in pending if i not in done], one_by_one=one_by_one):
            done[index] = self._failure(calls[index], limit, fault=fault, exit_code=exit_code)
            if stops(done[index]):
                raise StopsRunError(done[index])
        return done

    def _hears_within(self, seconds: float) -> bool:
        """Whether the process sends something in time; time in which it waits for a processor is added."""
        assert self._connection is not None and self._process is not None
        started = time.monotonic()
        if self._connection.poll(min(seconds, SHORTEST_WAIT_SECONDS)):
            return True
        waited = _seconds_without_processor(self._process.pid)
        remaining = started + seconds - time.monotonic()
        while remaining > SHORTEST_WAIT_SECONDS:
            if self._connection.poll(remaining):
                return True
            delay = _seconds_without_processor(self._process.pid) - waited
            remaining = started + seconds + min(delay, MAX_DELAY * seconds) - time.monotonic()
        return self._connection.poll(0)

    def _at_fault(self, unanswered: Sequence[int], *, one_by_one: bool) -> Sequence[int]:
        """The call that was running, or all calls of a batch. Among overlapping calls it is unknown, hence none."""
        if self.ready.batched:
            return unanswered
        return unanswered[:1] if one_by_one else ()

    def _wait_seconds(self, limit: float, num_calls: int, *, one_by_one: bool) -> float:
        if self.ready.batched:
            return limit * num_calls
        return limit if one_by_one else limit + GRACE_SECONDS

    def _failure(self, call: Call, limit: float, *, fault: str, exit_code: int | None) -> RewardOutcome:
        if fault == "timeout":
            return failed(timeout_message(self.name, call.row, limit), kind="timeout")
        return failed(f"the process of `{self.name}` ended with code {exit_code} on row {call.row}", kind="died")

    def _start(self) -> Ready:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stderr=subprocess.PIPE,
            )
        threading.Thread(target=self._show, args=(self._process.stderr,), daemon=True).start()
        self._connection = ours
        try:
            return self._first_answer(ours)
        except BaseException:
            self._kill()
            raise

    def _show(self, output: IO[bytes]) -> None:
        """Copy what a process prints to stderr, up to SHOWN_BYTES per step."""
        with output:
            while chunk := os.read(output.fileno(), SHOWN_BYTES):
                left = SHOWN_BYTES - self._shown_bytes
                self._shown_bytes += len(chunk)
                if left > 0:
                    os.write(2, chunk[:left])
                    if len(chunk) >= left:
                        os.write(2, f"\n`{self.name}` prints more, which is not shown\n".encode())

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
        kill_tree(process.pid)
        process.wait()


def _seconds_without_processor(pid: int) -> float:
    """Time in which the main thread of a process was ready to run but had no processor; 0 if the system hides it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
