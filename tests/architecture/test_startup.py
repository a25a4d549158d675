"""The command line starts fast and without torch."""

from __future__ import annotations

import subprocess
import sys
import time

from rl_compat.cli.app import COMMANDS

HEAVY = ("torch", "transformers", "numpy", "rich", "pyarrow", "datasets", "pynvml")


def run(code: str) -> tuple[str, float]:
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout, time.monotonic() - started


def loaded_after(arguments: list[str]) -> str:
    return f"""
import sys
from rl_compat.cli.app import main
code = main({arguments!r})
print("code", code, "loaded", sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def test_help_starts_in_a_moment_and_loads_nothing_heavy() -> None:
    output, seconds = run(loaded_after(["--help"]))

    assert "code 0 loaded []" in output
    assert seconds < 2


def test_the_help_of_every_command_loads_nothing_heavy() -> None:
    for name, _, _ in COMMANDS:
        output, _ = run(loaded_after([name, "--help"]))

        assert f"Usage: rlc {name}" in output
        assert "code 0 loaded []" in output, name


def test_importing_the_package_loads_nothing_heavy() -> None:
    output, _ = run(f"import sys, rl_compat; print(sorted(set({HEAVY!r}) & set(sys.modules)))")

    assert output.strip() == "[]"
