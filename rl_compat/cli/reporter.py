"""The progress of a run on stderr: a live status line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rl_compat.cli.render import LiveStatus, print_note, print_warning


class TerminalReporter:
    """Shows the step and the phase on stderr, with notes and warnings above them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._status: LiveStatus | None = None
        self._step = (0, 0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._status = self._stack.enter_context(LiveStatus())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        kind, _, rest = text.partition(": ")
        if kind == "warning":
            print_warning(rest)
        else:
            print_note(text)

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        if name == "step" and total:
            self._step = (done, total)
        elif self._status is not None:
            self._status.show(*self._step, phase=name, done=done, items=total)
