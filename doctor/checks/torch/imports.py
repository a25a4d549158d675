"""Why torch does not import: from the last line that the child process printed, or from how it died."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import newer_system, pip_install, shell, torch_remedies
from rl_compat.hardware.types import Hardware

LONGEST = 300
"characters of an error that are shown"


@dataclass(frozen=True, slots=True)
class Reason:
    """One way in which an import fails."""

    case: str
    pattern: str
    why: str
    remedies: Callable[[Hardware], tuple[Remedy, ...]]


def import_error(hardware: Hardware, error: str) -> Finding:
    """The failure, explained by the first reason whose pattern matches the error."""
    reason = reason_of(error)
    shown = error if len(error) <= LONGEST else f"{error[:LONGEST]} …"
    version = hardware.software.packages.get("torch")
    return Finding(
        f"torch.{reason.case}",
        Severity.FAILURE,
        f"torch{f' {version}' if version else ''} does not import: {shown}",
        reason.why.replace("{cpu}", hardware.host.cpu_name),
        where=("torch",),
        affects=("training",),
        remedies=reason.remedies(hardware),
    )


def reason_of(error: str) -> Reason:
    return next(reason for reason in REASONS if re.search(reason.pattern, error, re.IGNORECASE))


def _conflict(hardware: Hardware) -> tuple[Remedy, ...]:
    """If a library path is set, the check `libraries` has the command; otherwise the packages do not match."""
    paths = [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if hardware.environment.get(name)]
    return () if paths else _reinstall(hardware)


def _reinstall(hardware: Hardware) -> tuple[Remedy, ...]:
    """Install torch and its dependencies again, even if the same version is installed."""
    return tuple(_forced(remedy) for remedy in torch_remedies(hardware))


def _forced(remedy: Remedy) -> Remedy:
    forced = tuple(
        line if "--force-reinstall" in line else line.replace(" pip install ", " pip install --force-reinstall ")
        for line in remedy.commands
    )
    return replace(remedy, commands=forced if remedy.step is Step.TORCH else remedy.commands)


def _numpy(hardware: Hardware) -> tuple[Remedy, ...]:
    upgrade = pip_install(hardware, "install a numpy that matches this torch", "--upgrade", "numpy")
    return (upgrade, *torch_remedies(hardware))


def _room(hardware: Hardware) -> tuple[Remedy, ...]:
    what = "use a writable folder with free space for caches and temporary files (`disk` lists the folders)"
    command = "export TMPDIR=FOLDER XDG_CACHE_HOME=FOLDER"
    return (shell(what, command, certainty=Certainty.PLACEHOLDER),)


def _old_cpu(hardware: Hardware) -> tuple[Remedy, ...]:
    what, command = "limit oneDNN to instructions that every CPU has", "export DNNL_MAX_CPU_ISA=SSE41"
    return (shell(what, command, certainty=Certainty.UNCERTAIN), *torch_remedies(hardware))


def _trace(hardware: Hardware) -> Remedy:
    python = hardware.software.executable or "python"
    return shell("see where it stops", f"{python} -X faulthandler -X importtime -c 'import torch'")


def _newer_system(hardware: Hardware) -> tuple[Remedy, ...]:
    """A newer system, or the last torch for this one."""
    return (newer_system(), *(remedy for remedy in torch_remedies(hardware) if remedy.step is Step.TORCH))


def _newer_runtime(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.software.environment_kind == "conda":
        command = "conda install --yes -c conda-forge libstdcxx-ng"
        return (Remedy("install a newer libstdc++ into the environment", Step.PYTHON, (command,)),)
    return (Remedy("install a newer libstdc++ (GCC 11 or later)", Step.SYSTEM), *_conflict(hardware))


REASONS = (
    Reason(
        "hangs",
        r"no answer within",
        "something blocks the import: a file system that does not answer, or a driver that hangs",
        lambda hardware: (_trace(hardware), *_reinstall(hardware)),
    ),
    Reason(
        "illegal_instruction",
        r"SIGILL|illegal instruction",
        "the code uses instructions that this CPU lacks ({cpu}); prebuilt packages often need AVX2",
        _old_cpu,
    ),
    Reason(
        "killed",
        r"SIGKILL|signal 9\b|MemoryError|cannot allocate memory",
        "the system ran out of memory during the import; the limit of a container counts too",
        lambda hardware: (Remedy("give this process at least 4 GiB of memory", Step.CONTAINER),),
    ),
    Reason(
        "crashes",
        r"killed by signal|segmentation fault|exit code 13[0-9]|SIGBUS",
        "a library of another release, or a damaged installation, crashes the process during the import",
        lambda hardware: (*_reinstall(hardware), _trace(hardware)),
    ),
    Reason(
        "system_too_old",
        r"GLIBC_[0-9.]+' not found",
        "the wheel was built for a newer C library than this system has",
        _newer_system,
    ),
    Reason(
        "runtime_too_old",
        r"(GLIBCXX|CXXABI)_[0-9.]+' not found",
        "the wheel was built for a newer C++ library than the one that is found first",
        _newer_runtime,
    ),
    Reason(
        "undefined_symbol",
        r"undefined symbol|symbol lookup error|version `?lib\S+' not found|symbol \S+ version \S+ not defined",
        "the process loads libraries of different CUDA releases; the check `libraries` reports where they come from",
        _conflict,
    ),
    Reason(
        "driver_library_missing",
        r"libcuda\.so\S*: cannot open",
        "this library belongs to the driver and is in no Python package; the check `driver` reports what is missing",
        lambda hardware: (),
    ),
    Reason(
        "library_missing",
        r"lib\S+\.so\S*: cannot open|DLL load failed|Library not loaded",
        "a library that torch installs as a separate package is missing or of another CUDA release",
        _reinstall,
    ),
    Reason("numpy", r"numpy", "torch and numpy were built for different binary interfaces", _numpy),
    Reason(
        "no_room",
        r"no space left|disk quota|read-only file system",
        "the import has to write a file and cannot",
        _room,
    ),
    Reason(
        "incomplete",
        r"ModuleNotFoundError|No module named|partially initialized|has no attribute|cannot import name",
        "the installation is incomplete, or another module named `torch` is found first (`installs` lists them)",
        _reinstall,
    ),
    Reason(
        "fails",
        r"",
        "training is not possible until it imports; `rlc doctor explain` reads the whole traceback",
        lambda hardware: (*_reinstall(hardware), _trace(hardware)),
    ),
)
"the first one that matches counts; the last one always matches"
