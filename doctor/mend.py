"""What mends a machine: one remedy for each finding, without contradictions, in the order in which one would go."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import NEW_ENVIRONMENT, install_torch
from rl_compat.hardware.types import Hardware

WIDTH = 98
QUICKSTART = "scripts/quickstart.sh"
OF_THE_HOST = (Step.DRIVER, Step.CONTAINER)
"steps that are not taken inside of a container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """One remedy of the block, and why it is there."""

    remedy: Remedy
    findings: tuple[str, ...]
    "ids of the findings that it mends"
    elsewhere: str | None = None
    "where its commands are to be run when that is not here: `the host`, `Windows`"


def mending(findings: Iterable[Finding], hardware: Hardware) -> tuple[Mend, ...]:
    """The first remedies of what fails and of what is worth a warning, in the order of their steps."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING and finding.remedies]
    bad.sort(key=lambda finding: -finding.severity)
    chosen = [(finding.id, preferred(finding)) for finding in bad]
    merged = _merge(_one_torch(_one_environment(chosen, hardware), hardware))
    ordered = sorted(merged, key=lambda mend: (mend.remedy.step, not _uninstalls(mend.remedy)))
    moved = _in_new_environment(ordered, hardware)
    return tuple(replace(mend, elsewhere=_elsewhere(mend.remedy.step, hardware)) for mend in moved)


def script(mends: Sequence[Mend], *, brief: bool = False) -> Iterator[str]:
    """Lines of a POSIX shell, each command under a comment that says what it does, and unless it is `brief` why.

    What has to be filled in, changes the system on a guess, or belongs elsewhere is a comment too, so that the whole
    block can be pasted.
    """
    for mend in mends:
        where = f"on {mend.elsewhere}: " if mend.elsewhere else ""
        what = mend.remedy.what.partition("; ")[0] if brief and mend.remedy.commands else mend.remedy.what
        yield from _comment(f"{where}{what}{_caution(mend.remedy)}")
        for command in mend.remedy.commands:
            yield command if mend.elsewhere is None and _can_run(command, mend.remedy.sure) else f"#   {command}"


def renews_torch(mends: Iterable[Mend]) -> bool:
    """Whether another torch is installed."""
    return any(_installs_torch(mend.remedy) for mend in mends)


def _can_run(command: str, sure: Sureness) -> bool:
    return sure is Sureness.PASTE or (sure is Sureness.UNSURE and "sudo " not in command)


def preferred(finding: Finding) -> Remedy:
    """The first remedy, or instead of a new driver another torch: that needs no root."""
    first = finding.remedies[0]
    if first.step is not Step.DRIVER:
        return first
    return next((other for other in finding.remedies if _installs_torch(other)), first)


def _one_environment(chosen: Sequence[tuple[str, Remedy]], hardware: Hardware) -> list[tuple[str, Remedy]]:
    """Where the quickstart makes an environment with everything in it, it stands for all that would go into one."""
    whole = next((remedy for _, remedy in chosen if QUICKSTART in remedy.commands), None)
    if whole is None:
        return list(chosen)
    python = shlex.quote(hardware.software.executable or "python3")
    return [(id, whole if _all_start_with(python, remedy.commands) else remedy) for id, remedy in chosen]


def _all_start_with(python: str, commands: Sequence[str]) -> bool:
    return bool(commands) and all(re.match(rf"{re.escape(python)} -m (venv|pip) ", command) for command in commands)


def _one_torch(chosen: Sequence[tuple[str, Remedy]], hardware: Hardware) -> list[tuple[str, Remedy]]:
    """Where several builds of torch are to be installed, one instead of each.

    Another Python comes with its torch; otherwise it is the build for the card, the driver and the Python.
    """
    wanted = [remedy for _, remedy in chosen if _installs_torch(remedy)]
    if len({remedy.commands for remedy in wanted}) < 2:
        return list(chosen)
    torch = next((remedy for remedy in wanted if remedy.step is Step.PYTHON), None) or install_torch(hardware)
    return [(id, torch if _installs_torch(remedy) else remedy) for id, remedy in chosen]


def _merge(chosen: Iterable[tuple[str, Remedy]]) -> list[Mend]:
    """Each set of commands once, for all the findings that it mends; prose without commands by its words."""
    merged: dict[tuple[object, ...], Mend] = {}
    for id, remedy in chosen:
        key = (remedy.step, remedy.commands or remedy.what)
        known = merged.get(key)
        merged[key] = replace(known, findings=(*known.findings, id)) if known else Mend(remedy=remedy, findings=(id,))
    return list(merged.values())


def _in_new_environment(mends: Sequence[Mend], hardware: Hardware) -> list[Mend]:
    """Packages go into the environment that an earlier line makes, not into the Python that it replaces."""
    makes = any(mend.remedy.step is Step.PYTHON and _makes_environment(mend.remedy) for mend in mends)
    return _folded(_with_new_python(mend, hardware) for mend in mends) if makes else list(mends)


def _folded(mends: Iterable[Mend]) -> list[Mend]:
    """What an earlier one does among other things is done there, also for the findings that asked for it alone."""
    found: list[Mend] = []
    for mend in mends:
        commands = set(mend.remedy.commands)
        whole = next((it for it in found if commands and commands <= set(it.remedy.commands)), None)
        if whole is None:
            found.append(mend)
        else:
            found[found.index(whole)] = replace(whole, findings=(*whole.findings, *mend.findings))
    return found


def _makes_environment(remedy: Remedy) -> bool:
    return any(re.search(rf"(venv|--prefix) .*{re.escape(NEW_ENVIRONMENT)}\b", line) for line in remedy.commands)


def _with_new_python(mend: Mend, hardware: Hardware) -> Mend:
    old, new = shlex.quote(hardware.software.executable or "python"), f"{NEW_ENVIRONMENT}/bin/python"
    if mend.remedy.step not in (Step.TORCH, Step.PACKAGE):
        return mend
    commands = tuple(re.sub(rf"^{re.escape(old)} -m pip\b", f"{new} -m pip", line) for line in mend.remedy.commands)
    return replace(mend, remedy=replace(mend.remedy, commands=commands))


def _installs_torch(remedy: Remedy) -> bool:
    return any(re.search(r" pip install .*\btorch(==| |$)", command) for command in remedy.commands)


def _uninstalls(remedy: Remedy) -> bool:
    return any(" pip uninstall " in command for command in remedy.commands)


def _elsewhere(step: Step, hardware: Hardware) -> str | None:
    if hardware.host.wsl and step is Step.DRIVER:
        return "Windows"
    return "the host" if hardware.host.container and step in OF_THE_HOST else None


def _caution(remedy: Remedy) -> str:
    return {
        Sureness.PASTE: "",
        Sureness.PLACEHOLDER: "; fill in the part in capitals or angle brackets first",
        Sureness.UNSURE: "; may be wrong here, read it first",
    }[remedy.sure if remedy.commands else Sureness.PASTE]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
