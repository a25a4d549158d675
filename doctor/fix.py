"""`--fix --yes`: run what mends the virtual environment of this Python, and nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from rl_compat.doctor.findings import Step, Sureness
from rl_compat.doctor.mend import Mend
from rl_compat.errors import UsageError
from rl_compat.hardware.system.software import environment_kind

OURS = (Step.TORCH, Step.PACKAGE)
PIP = ("install", "uninstall")


def refuse_system_python(environment: Mapping[str, str] = os.environ, *, prefix: str = sys.prefix) -> None:
    """Raise UsageError when this Python is no virtual or conda environment."""
    if environment_kind(environment, prefix=prefix) == "system":
        raise UsageError(
            f"`--yes` changes virtual environments only, and `{sys.executable}` is none",
            hint="`--fix` prints the commands; or make one and run the doctor with it: `python3 -m venv .venv`, "
            "`.venv/bin/python doctor --fix --yes`",
        )


def runnable(mends: Iterable[Mend], *, python: str = sys.executable) -> list[list[str]]:
    """The commands, as argument lists, that call pip of this very Python and need no shell."""
    certain = [
        mend.remedy
        for mend in mends
        if mend.remedy.step in OURS and mend.remedy.sure is Sureness.PASTE and mend.elsewhere is None
    ]
    split = [split_plain(command) for remedy in certain for command in remedy.commands]
    return [words for words in split if words[:3] == [python, "-m", "pip"] and words[3:4] and words[3] in PIP]


def split_plain(command: str) -> list[str]:
    """The words of a command that means the same without a shell; none of any other."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if shlex.join(words) == command else []


def run_all(commands: Sequence[Sequence[str]], environment: Mapping[str, str] = os.environ) -> bool:
    """Run one after the other, each shown with its output, up to the first that fails; whether all went well."""
    variables = {**environment, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for command in commands:
        print(f"$ {shlex.join(command)}", flush=True)
        code = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL).returncode
        if code != 0:
            print(f"error: it failed with exit code {code}, the commands after it were not run", file=sys.stderr)
            return False
    return True
