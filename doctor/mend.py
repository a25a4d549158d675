"""What mends a machine: one remedy for each finding, without contradictions, in the order in which one would go."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rl_compat.doctor.remedies import install_torch
from rl_compat.doctor.types import Finding, Remedy, Severity, Step, Sureness
from rl_compat.hardware.types import Hardware

WIDTH = 98
BY_STEP = {Step.DRIVER: "the host", Step.CONTAINER: "the host"}
"where a container's steps are taken, when not in the container itself"


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
    chosen = [(finding.id, _preferred(finding)) for finding in bad]
    merged = _merge(_one_torch(chosen, hardware))
    ordered = sorted(merged, key=lambda mend: (mend.remedy.step, not _uninstalls(mend.remedy)))
    moved = _in_new_python(ordered, hardware)
    return tuple(replace(mend, elsewhere=_elsewhere(mend.remedy.step, hardware)) for mend in moved)


def script(mends: Sequence[Mend]) -> Iterator[str]:
    """Lines of a POSIX shell, each command under a comment that says what it does.

    What cannot be run as it stands, or not here, is a comment too, so that the whole block can be pasted.
    """
    for mend in mends:
        remedy = mend.remedy
        where = f"on {mend.elsewhere}: " if mend.elsewhere else ""
        yield from _comment(f"{where}{remedy.what}{_warning(remedy)}")
        live = remedy.sure is Sureness.PASTE and mend.elsewhere is None
        yield from remedy.commands if live else (f"#   {command}" for command in remedy.commands)


def _preferred(finding: Finding) -> Remedy:
    """The first remedy, or instead of a new driver another torch: that needs no root."""
    first = finding.remedies[0]
    if first.step is not Step.DRIVER:
        return first
    return next((other for other in finding.remedies if _torch_requirement(other)), first)


def _one_torch(chosen: Sequence[tuple[str, Remedy]], hardware: Hardware) -> list[tuple[str, Remedy]]:
    """Where several builds of torch are to be installed, the one for card, driver and Python instead of each."""
    wanted = {remedy.commands for _, remedy in chosen if _torch_requirement(remedy)}
    if len(wanted) < 2:
        return list(chosen)
    torch = install_torch(hardware)
    return [(id, torch if _torch_requirement(remedy) else remedy) for id, remedy in chosen]


def _merge(chosen: Iterable[tuple[str, Remedy]]) -> list[Mend]:
    """Each set of commands once, for all the findings that it mends; prose without commands by its words."""
    merged: dict[tuple[object, ...], Mend] = {}
    for id, remedy in chosen:
        key = (remedy.step, remedy.commands or remedy.what)
        known = merged.get(key)
        merged[key] = replace(known, findings=(*known.findings, id)) if known else Mend(remedy=remedy, findings=(id,))
    return list(merged.values())


def _in_new_python(mends: Sequence[Mend], hardware: Hardware) -> list[Mend]:
    """Packages go into the virtual environment that an earlier line makes, not into the Python that it replaces."""
    made = next((folder for mend in mends for folder in _venvs(mend.remedy)), None)
    old = hardware.software.executable or "python"
    if made is None:
        return list(mends)
    return [_with_python(mend, old, f"{made}/bin/python") for mend in mends]


def _with_python(mend: Mend, old: str, new: str) -> Mend:
    if mend.remedy.step not in (Step.TORCH, Step.PACKAGE):
        return mend
    start = shlex.quote(old) + " "
    commands = tuple(
        new + " " + line.removeprefix(start) if line.startswith(start) else line for line in mend.remedy.commands
    )
    return replace(mend, remedy=replace(mend.remedy, commands=commands))


def _venvs(remedy: Remedy) -> Iterator[str]:
    """Folders of the virtual environments that a remedy makes."""
    if remedy.step is Step.PYTHON and remedy.sure is Sureness.PASTE:
        for command in remedy.commands:
            match = re.search(r"(?:-m|uv) venv\b.*?([^\s-]\S*)\s*$", command)
            if match:
                yield match.group(1)


def _torch_requirement(remedy: Remedy) -> str | None:
    """`torch==2.14.1+cu126` where a remedy installs torch."""
    words = [word for command in remedy.commands for word in command.split() if " install " in f"{command} "]
    return next((word for word in words if re.match(r"torch(?![\w-])", word)), None)


def _uninstalls(remedy: Remedy) -> bool:
    return any(" pip uninstall " in command for command in remedy.commands)


def _elsewhere(step: Step, hardware: Hardware) -> str | None:
    if hardware.host.wsl and step is Step.DRIVER:
        return "Windows"
    return BY_STEP.get(step) if hardware.host.container else None


def _warning(remedy: Remedy) -> str:
    return {
        Sureness.PASTE: "",
        Sureness.PLACEHOLDER: "; fill in the part in capitals or angle brackets first",
        Sureness.UNSURE: "; may be wrong here, read it first",
    }[remedy.sure if remedy.commands else Sureness.PASTE]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
