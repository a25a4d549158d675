"""Why torch does not import, from the last line that the child process said or from how it died."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import newer_system, pip_install, shell, torch_remedies
from rl_compat.hardware.types import Hardware

LONGEST = 300
"characters of an error that are shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One way in which an import fails."""

    case: str
    pattern: str
    why: str
    remedies: Callable[[Hardware], tuple[Remedy, ...]]


def look_at_the_import_error(hardware: Hardware, error: str) -> Finding:
    """The failure with the first reason whose pattern is in the error."""
    reason = reason_of(error)
    shown = error if len(error) <= LONGEST else f"{error[:LONGEST]} …"
    version = hardware.software.packages.get("torch")
    return Finding(
        id=f"torch.{reason.case}",
        severity=Severity.FAILURE,
        what=f"torch{f' {version}' if version else ''} does not import: {shown}",
        why=reason.why.replace("{cpu}", hardware.host.cpu_name),
        where=("torch",),
        affects=("training",),
        remedies=reason.remedies(hardware),
    )


def reason_of(error: str) -> Reason:
    return next(reason for reason in REASONS if re.search(reason.pattern, error, re.IGNORECASE))


def _conflict(hardware: Hardware) -> tuple[Remedy, ...]:
    """Where a library path is set the check `libraries` has the command; otherwise the packages do not match."""
    paths = [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if hardware.environment.get(name)]
    return () if paths else _again(hardware)


def _again(hardware: Hardware) -> tuple[Remedy, ...]:
    """Install torch with everything it needs anew, also where the same version is there."""
    return tuple(_forced(remedy) for remedy in torch_remedies(hardware))


def _forced(remedy: Remedy) -> Remedy:
    forced = tuple(
        line if "--force-reinstall" in line else line.replace(" pip install ", " pip install --force-reinstall ")
        for line in remedy.commands
    )
    return replace(remedy, commands=forced if remedy.step is Step.TORCH else remedy.commands)


def _numpy(hardware: Hardware) -> tuple[Remedy, ...]:
    command = pip_install(hardware, "--upgrade", "numpy")
    upgrade = Remedy(what="install a numpy that fits this torch", step=Step.PACKAGE, commands=(command,))
    return (upgrade, *torch_remedies(hardware))


def _room(hardware: Hardware) -> tuple[Remedy, ...]:
    to_disk = "export TMPDIR=FOLDER XDG_CACHE_HOME=FOLDER"
    what = "give caches and temporary files a folder that can be written to and has room (`storage` lists the folders)"
    return (shell(what, to_disk, sure=Sureness.PLACEHOLDER),)


def _old_cpu(hardware: Hardware) -> tuple[Remedy, ...]:
    return (
        shell("keep oneDNN to instructions that every CPU has", "export DNNL_MAX_CPU_ISA=SSE41", sure=Sureness.UNSURE),
        *torch_remedies(hardware),
    )


def _trace(hardware: Hardware) -> Remedy:
    python = hardware.software.executable or "python"
    return shell("see where it stops", f"{python} -X faulthandler -X importtime -c 'import torch'")


def _newer_system(hardware: Hardware) -> tuple[Remedy, ...]:
    """Or the last torch for this one, where there is one."""
    return (newer_system(), *(remedy for remedy in torch_remedies(hardware) if remedy.step is Step.TORCH))


def _conda_runtime(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.software.environment_kind == "conda":
        command = "conda install --yes -c conda-forge libstdcxx-ng"
        return (Remedy(what="bring a newer libstdc++ into the environment", step=Step.PYTHON, commands=(command,)),)
    return (Remedy(what="install a newer libstdc++ (of GCC 11 or later)", step=Step.SYSTEM), *_conflict(hardware))


UNDEFINED = r"undefined symbol|symbol lookup error|version `?lib\S+' not found|symbol \S+ version \S+ not defined"

REASONS = (
    Reason(
        case="hangs",
        pattern=r"no answer within",
        why="something blocks the import: a file system that does not answer, or a driver that hangs",
        remedies=lambda hardware: (_trace(hardware), *_again(hardware)),
    ),
    Reason(
        case="illegal_instruction",
        pattern=r"SIGILL|illegal instruction",
        why="the code has instructions that this CPU lacks ({cpu}); prebuilt packages often expect AVX2",
        remedies=_old_cpu,
    ),
    Reason(
        case="killed",
        pattern=r"SIGKILL|signal 9\b|MemoryError|cannot allocate memory",
        why="the system ran out of memory while loading it; a container's limit counts",
        remedies=lambda hardware: (Remedy(what="give this process at least 4 GiB of memory", step=Step.CONTAINER),),
    ),
    Reason(
        case="crashes",
        pattern=r"killed by signal|segmentation fault|exit code 13[0-9]|SIGBUS",
        why="a library of another release, or a damaged installation, crashes the process while loading",
        remedies=lambda hardware: (*_again(hardware), _trace(hardware)),
    ),
    Reason(
        case="system_too_old",
        pattern=r"GLIBC_[0-9.]+' not found",
        why="the wheel was built for a newer C library than this system has",
        remedies=_newer_system,
    ),
    Reason(
        case="runtime_too_old",
        pattern=r"(GLIBCXX|CXXABI)_[0-9.]+' not found",
        why="the wheel was built for a newer C++ library than the one that is found first",
        remedies=_conda_runtime,
    ),
    Reason(
        case="undefined_symbol",
        pattern=UNDEFINED,
        why="two libraries of different CUDA releases meet in one process; the check `libraries` says where from",
        remedies=_conflict,
    ),
    Reason(
        case="driver_library_missing",
        pattern=r"libcuda\.so\S*: cannot open",
        why="this library belongs to the driver and comes with no package; the check `driver` says what is missing",
        remedies=lambda hardware: (),
    ),
    Reason(
        case="library_missing",
        pattern=r"lib\S+\.so\S*: cannot open|DLL load failed|Library not loaded",
        why="a library that torch brings as a package of its own is missing or of another CUDA release",
        remedies=_again,
    ),
    Reason(
        case="numpy",
        pattern=r"numpy",
        why="torch and numpy were built for different binary interfaces",
        remedies=_numpy,
    ),
    Reason(
        case="no_room",
        pattern=r"no space left|disk quota|read-only file system",
        why="a file that the import writes cannot be written",
        remedies=_room,
    ),
    Reason(
        case="incomplete",
        pattern=r"ModuleNotFoundError|No module named|partially initialized|has no attribute|cannot import name",
        why="the installation is incomplete, or something else named `torch` is found first (`installs` lists them)",
        remedies=_again,
    ),
    Reason(
        case="fails",
        pattern=r"",
        why="nothing can be trained while it does; `rlc doctor explain` reads the whole traceback",
        remedies=lambda hardware: (*_again(hardware), _trace(hardware)),
    ),
)
"the first one that matches counts; the last one always does"
