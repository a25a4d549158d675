"""Programs and calls with a timeout, even if they cannot be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KILL_SECONDS = 1.0
"how long a killed program may take to end; one that waits for a broken device never ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The output of a program until it ended or timed out."""

    stdout: str
    stderr: str
    returncode: int | None
    "None if it timed out; negative for the signal that killed it"


def run_program(
    command: Sequence[str], *, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program without input. After `timeout_seconds` it is killed with its children and abandoned.

    Raises OSError if it cannot be started.
    """
    process = subprocess.Popen(
        list(command),
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
        return Finished(stdout=_text(stdout), stderr=_text(stderr), returncode=process.returncode)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        try:
            stdout, stderr = process.communicate(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired as expired:
            stdout, stderr = expired.stdout or b"", expired.stderr or b""
        return Finished(stdout=_text(stdout), stderr=_text(stderr), returncode=None)
    except BaseException:
        _kill_group(process.pid)
        raise


class Background(Generic[T]):
    """A call in a daemon thread, which ends with the program if the call never returns."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:
            self._error = error

    def ends_within(self, seconds: float) -> bool:
        """Wait up to the given time; returns whether the call has returned."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, timeout_seconds: float | None = None) -> T:
        """The result, or the error that was raised. Raises TimeoutError if there is neither in time."""
        self._thread.join(timeout_seconds)
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise TimeoutError(no_answer(timeout_seconds or 0.0))
        return self._answer[0]


def no_answer(seconds: float) -> str:
    return f"no answer within {seconds:g} s"


def _kill_group(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
