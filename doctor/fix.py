"""What to run to fix a machine: remedies in order, each for the machine that the earlier ones leave."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import NEW_ENVIRONMENT
from rl_compat.doctor.repaired import OPTIONS_WITH_VALUES, after
from rl_compat.errors import UsageError
from rl_compat.hardware.system.software import environment_kind
from rl_compat.hardware.types import Hardware

Examine = Callable[[Hardware], Iterable[Finding]]
"what is found on a machine"
WIDTH = 98
QUICKSTART = "scripts/quickstart.sh"
ON_THE_HOST = (Step.DRIVER, Step.CONTAINER)
"steps that are not possible inside a container"
OF_PIP = (Step.TORCH, Step.PACKAGE)
CAUTIONS = {
    Certainty.READY: "",
    Certainty.PLACEHOLDER: "fill in the part in capitals or angle brackets first",
    Certainty.UNCERTAIN: "may be wrong here, read it first",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One remedy to apply, and why."""

    remedy: Remedy
    findings: tuple[str, ...]
    "ids of the findings that ask for it"
    settles: tuple[str, ...] = ()
    "ids of the findings that are gone with it too"
    elsewhere: str | None = None
    "where to run its commands, if not here: `the host`, `Windows`"


def plan_fixes(findings: Iterable[Finding], hardware: Hardware, examine: Examine) -> tuple[Fix, ...]:
    """The preferred remedies of failures and warnings, the earliest step first.

    After each remedy, `examine` says what is still wrong on the machine that it leaves: a finding that is gone needs
    no remedy, and one that the remedy causes gets its own. Nothing is assigned, installed or removed twice.
    """
    fixes: list[Fix] = []
    machine, bad, changed = hardware, _with_remedies(findings), set[str]()
    while True:
        open_remedies = [(finding, preferred(finding)) for finding in bad]
        open_remedies = [(finding, remedy) for finding, remedy in open_remedies if not changed & _changes(remedy)]
        if not open_remedies:
            return tuple(fixes)
        _, chosen = min(open_remedies, key=lambda one: (one[1].step, not _uninstalls(one[1]), -one[0].severity))
        elsewhere = _elsewhere(chosen.step, hardware)
        following = after(machine, [line for line in chosen.commands if elsewhere is None and can_run(line, chosen)])
        remaining = bad if following == machine else _with_remedies(examine(following))
        asked = [finding.id for finding, remedy in open_remedies if _is_same(remedy, chosen)]
        gone = [finding.id for finding in bad if finding.id not in {*asked, *(other.id for other in remaining)}]
        fixes.append(Fix(remedy=chosen, findings=tuple(asked), settles=tuple(gone), elsewhere=elsewhere))
        machine, bad, changed = following, remaining, changed | _changes(chosen)


def settled_by(finding: Finding, fixes: Iterable[Fix]) -> Fix | None:
    """The fix that another finding asks for and that makes the remedies of this one unnecessary; None if they hold."""
    if not finding.remedies or any(_is_same(remedy, fix.remedy) for fix in fixes for remedy in finding.remedies):
        return None
    wanted = _changes(preferred(finding))
    return next((fix for fix in fixes if finding.id in fix.settles or wanted & _changes(fix.remedy)), None)


def _is_same(one: Remedy, other: Remedy) -> bool:
    return one.step is other.step and (one.commands or one.what) == (other.commands or other.what)


def _with_remedies(findings: Iterable[Finding]) -> list[Finding]:
    """Failures and warnings that have a remedy, the worst first."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING and finding.remedies]
    return sorted(bad, key=lambda finding: -finding.severity)


def _changes(remedy: Remedy) -> set[str]:
    """The variables, packages and environments that a remedy changes, and the driver; else its commands or its text."""
    changed: set[str] = set()
    for line in remedy.commands:
        words = split_plain(line) or line.split()
        if words[0] in ("export", "unset"):
            changed |= {word.partition("=")[0] for word in words[1:]}
        elif words[1:3] == ["-m", "pip"]:
            changed |= {
                re.split("[<>=!~]", word)[0]
                for option, word in pairwise(words[3:])
                if not word.startswith("-") and option not in OPTIONS_WITH_VALUES
            }
        elif "-m venv " in line or "conda create" in line or line == QUICKSTART:
            changed.add(NEW_ENVIRONMENT)
        elif "nvidia-driver-" in line:
            changed.add("the driver")
    return changed or {*remedy.commands, *([] if remedy.commands else [remedy.what])}


def preferred(finding: Finding) -> Remedy:
    """The first remedy; instead of a new driver another torch, which needs no root."""
    first = finding.remedies[0]
    if first.step is not Step.DRIVER:
        return first
    return next((other for other in finding.remedies if _installs_torch(other)), first)


def script(fixes: Sequence[Fix], *, brief: bool = False) -> Iterator[str]:
    """Lines of a POSIX shell: each command under a comment with its purpose and, unless `brief`, its reason.

    Commands with a part to fill in, uncertain changes to the system and commands for another place are comments too,
    so that the whole block can be pasted.
    """
    for fix in fixes:
        where = f"on {fix.elsewhere}: " if fix.elsewhere else ""
        what = fix.remedy.what.partition("; ")[0] if brief and fix.remedy.commands else fix.remedy.what
        text = f"{where}{what}{caution(fix.remedy, '; {}')}"
        yield from textwrap.wrap(
            text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
        )
        for command in fix.remedy.commands:
            yield command if fix.elsewhere is None and can_run(command, fix.remedy) else f"#   {command}"


def caution(remedy: Remedy, form: str) -> str:
    """What to do before running the commands, in `form`; empty if they are ready."""
    text = CAUTIONS[remedy.certainty] if remedy.commands else ""
    return form.format(text) if text else ""


def replaces_torch(fixes: Iterable[Fix]) -> bool:
    """Whether another torch is installed."""
    return any(_installs_torch(fix.remedy) for fix in fixes)


def can_run(command: str, remedy: Remedy) -> bool:
    """Whether a command is safe to paste: complete, and not an uncertain change of the system."""
    uncertain = remedy.certainty is Certainty.UNCERTAIN and "sudo " not in command
    return remedy.certainty is Certainty.READY or uncertain


def _installs_torch(remedy: Remedy) -> bool:
    return any(re.search(r" pip install .*\btorch(==| |$)", command) for command in remedy.commands)


def _uninstalls(remedy: Remedy) -> bool:
    return any(" pip uninstall " in command for command in remedy.commands)


def _elsewhere(step: Step, hardware: Hardware) -> str | None:
    if hardware.host.wsl and step is Step.DRIVER:
        return "Windows"
    return "the host" if hardware.host.container and step in ON_THE_HOST else None


def refuse_system_python(environment: Mapping[str, str] = os.environ, *, prefix: str = sys.prefix) -> None:
    """Raise UsageError if this Python is not a virtual or conda environment."""
    if environment_kind(environment, prefix=prefix) == "system":
        raise UsageError(
            f"`--yes` changes virtual environments only, and `{sys.executable}` is not one",
            hint="`--fix` prints the commands; or create an environment and run the doctor in it: "
            "`python3 -m venv .venv`, `.venv/bin/python doctor --fix --yes`",
        )


def runnable(fixes: Iterable[Fix], *, python: str = sys.executable) -> list[list[str]]:
    """The commands, as argument lists, that call pip of this Python and need no shell."""
    ready = [
        fix.remedy
        for fix in fixes
        if fix.remedy.step in OF_PIP and fix.remedy.certainty is Certainty.READY and fix.elsewhere is None
    ]
    split = [split_plain(command) for remedy in ready for command in remedy.commands]
    pip = [python, "-m", "pip"]
    return [words for words in split if words[:3] == pip and words[3:4] in (["install"], ["uninstall"])]


def split_plain(command: str) -> list[str]:
    """The words of a command that means the same without a shell; empty for any other."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if shlex.join(words) == command else []


def run_all(commands: Sequence[Sequence[str]], environment: Mapping[str, str] = os.environ) -> bool:
    """Run the commands in order with their output, up to the first that fails; whether all succeeded."""
    variables = {**environment, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for command in commands:
        print(f"$ {shlex.join(command)}", flush=True)
        code = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL).returncode
        if code != 0:
            print(f"error: the command failed with exit code {code}; the rest was not run", file=sys.stderr)
            return False
    return True
