"""What to run to fix a machine: one remedy per finding, without contradictions, in the order of their steps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import NEW_ENVIRONMENT, install_torch
from rl_compat.errors import UsageError
from rl_compat.hardware.system.software import environment_kind
from rl_compat.hardware.types import Hardware

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
    "ids of the findings that it fixes"
    elsewhere: str | None = None
    "where to run its commands, if not here: `the host`, `Windows`"


def plan_fixes(findings: Iterable[Finding], hardware: Hardware) -> tuple[Fix, ...]:
    """The preferred remedies of failures and warnings, in the order of their steps."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING and finding.remedies]
    bad.sort(key=lambda finding: -finding.severity)
    chosen = [(finding.id, preferred(finding)) for finding in bad]
    merged = _merge(_one_torch(_one_environment(chosen, hardware), hardware))
    ordered = sorted(merged, key=lambda fix: (fix.remedy.step, not _uninstalls(fix.remedy)))
    moved = _in_new_environment(ordered, hardware)
    return tuple(replace(fix, elsewhere=_elsewhere(fix.remedy.step, hardware)) for fix in moved)


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
        yield from _comment(f"{where}{what}{caution(fix.remedy, '; {}')}")
        for command in fix.remedy.commands:
            yield command if fix.elsewhere is None and _can_run(command, fix.remedy.certainty) else f"#   {command}"


def caution(remedy: Remedy, form: str) -> str:
    """What to do before running the commands, in `form`; empty if they are ready."""
    text = CAUTIONS[remedy.certainty] if remedy.commands else ""
    return form.format(text) if text else ""


def replaces_torch(fixes: Iterable[Fix]) -> bool:
    """Whether another torch is installed."""
    return any(_installs_torch(fix.remedy) for fix in fixes)


def _can_run(command: str, certainty: Certainty) -> bool:
    return certainty is Certainty.READY or (certainty is Certainty.UNCERTAIN and "sudo " not in command)


def _one_environment(chosen: Sequence[tuple[str, Remedy]], hardware: Hardware) -> list[tuple[str, Remedy]]:
    """If the quickstart creates an environment with everything in it, it replaces all remedies for an environment."""
    whole = next((remedy for _, remedy in chosen if QUICKSTART in remedy.commands), None)
    if whole is None:
        return list(chosen)
    python = re.escape(shlex.quote(hardware.software.executable or "python3"))

    def is_covered(commands: Sequence[str]) -> bool:
        return bool(commands) and all(re.match(rf"{python} -m (venv|pip) ", command) for command in commands)

    return [(id, whole if is_covered(remedy.commands) else remedy) for id, remedy in chosen]


def _one_torch(chosen: Sequence[tuple[str, Remedy]], hardware: Hardware) -> list[tuple[str, Remedy]]:
    """If remedies install several builds of torch, one build for all of them.

    Another Python comes with its own torch; otherwise it is the build for the card, the driver and the Python.
    """
    wanted = [remedy for _, remedy in chosen if _installs_torch(remedy)]
    if len({remedy.commands for remedy in wanted}) < 2:
        return list(chosen)
    torch = next((remedy for remedy in wanted if remedy.step is Step.PYTHON), None) or install_torch(hardware)
    return [(id, torch if _installs_torch(remedy) else remedy) for id, remedy in chosen]


def _merge(chosen: Iterable[tuple[str, Remedy]]) -> list[Fix]:
    """Each set of commands once, for all the findings that it fixes; a remedy without commands by its text."""
    merged: dict[tuple[object, ...], Fix] = {}
    for id, remedy in chosen:
        key = (remedy.step, remedy.commands or remedy.what)
        known = merged.get(key)
        merged[key] = replace(known, findings=(*known.findings, id)) if known else Fix(remedy=remedy, findings=(id,))
    return list(merged.values())


def _in_new_environment(fixes: Sequence[Fix], hardware: Hardware) -> list[Fix]:
    """Packages go into the environment that an earlier line creates, not into the Python that it replaces."""
    creates = any(
        re.search(rf"(venv|--prefix) .*{re.escape(NEW_ENVIRONMENT)}\b", line)
        for fix in fixes
        if fix.remedy.step is Step.PYTHON
        for line in fix.remedy.commands
    )
    if not creates:
        return list(fixes)
    found: list[Fix] = []
    for fix in (_with_new_python(fix, hardware) for fix in fixes):
        commands = set(fix.remedy.commands)
        whole = next((it for it in found if commands and commands <= set(it.remedy.commands)), None)
        if whole is None:
            found.append(fix)
        else:
            found[found.index(whole)] = replace(whole, findings=(*whole.findings, *fix.findings))
    return found


def _with_new_python(fix: Fix, hardware: Hardware) -> Fix:
    if fix.remedy.step not in OF_PIP:
        return fix
    old, new = shlex.quote(hardware.software.executable or "python"), f"{NEW_ENVIRONMENT}/bin/python"
    commands = tuple(re.sub(rf"^{re.escape(old)} -m pip\b", f"{new} -m pip", line) for line in fix.remedy.commands)
    return replace(fix, remedy=replace(fix.remedy, commands=commands))


def _installs_torch(remedy: Remedy) -> bool:
    return any(re.search(r" pip install .*\btorch(==| |$)", command) for command in remedy.commands)


def _uninstalls(remedy: Remedy) -> bool:
    return any(" pip uninstall " in command for command in remedy.commands)


def _elsewhere(step: Step, hardware: Hardware) -> str | None:
    if hardware.host.wsl and step is Step.DRIVER:
        return "Windows"
    return "the host" if hardware.host.container and step in ON_THE_HOST else None


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


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
