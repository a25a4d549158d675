"""The command line starts fast and without torch."""

from __future__ import annotations

import subprocess
import sys

from rl_compat.cli.app import COMMANDS

HEAVY = ("torch", "transformers", "numpy", "rich", "pyarrow", "datasets", "pynvml")
MOST_MODULES = 500
"that `rlc --help` may import, the standard library's included: what its start takes on any machine"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def loaded_after(arguments: list[str]) -> str:
    return f"""
import sys
from rl_compat.cli.app import main
code = main({arguments!r})
print("code", code, "loaded", sorted(set({HEAVY!r}) & set(sys.modules)))
print(len(sys.modules))
"""


def test_help_loads_few_modules_and_nothing_heavy() -> None:
    output = run(loaded_after(["--help"]))

    assert "code 0 loaded []" in output
    assert int(output.split()[-1]) < MOST_MODULES


def test_the_help_of_every_command_loads_nothing_heavy() -> None:
    for name, _, _ in COMMANDS:
        output = run(loaded_after([name, "--help"]))

        assert f"Usage: rlc {name}" in output
        assert "code 0 loaded []" in output, name


def test_importing_the_package_loads_nothing_heavy() -> None:
    output = run(f"import sys, rl_compat; print(sorted(set({HEAVY!r}) & set(sys.modules)))")

    assert output.strip() == "[]"


def test_the_checks_before_a_run_load_no_model_code() -> None:
    late = ("peft", "bitsandbytes", "torch._inductor", "transformers.modeling_utils")
    output = run(f"import sys, rl_compat.trainer.training; print(sorted(set({late!r}) & set(sys.modules)))")

    assert output.strip() == "[]"
