"""A reward that a random model can move: the share of digits, or whether there are so many.

It can also signal the run that calls it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SLEEP_SECONDS = 3600
"after a signal was sent"

_calls = 0


def compute_scores(
    solution_strs: list[str],
    signal: str = "",
    at_call: str = "0",
    none_at: str = "0",
    at_least: str = "",
    once: str = "",
) -> list[float | None]:
    """One reward per response; call `at_call` sends the run that signal first, call `none_at` scores nothing.

    With `once`, a file that is made then, the signal is sent only while there is no such file.
    """
    global _calls
    _calls += 1
    if _calls == int(at_call) and not (once and Path(once).exists()):
        if once:
            Path(once).touch()
        os.kill(os.getppid(), int(signal))
        time.sleep(SLEEP_SECONDS)
    if _calls == int(none_at):
        return [None for _ in solution_strs]
    if at_least:
        return [float(sum(c.isdigit() for c in text) >= int(at_least)) for text in solution_strs]
    return [sum(c.isdigit() for c in text) / 8 + len(text) / 100 for text in solution_strs]
