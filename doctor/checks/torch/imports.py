"""Why torch does not import: from the last line that the child process printed, or from how it died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import newer_system, pip_install, shell, torch_remedies
from rl_compat.doctor.tables.rows import first_match
from rl_compat.hardware.types import Hardware

LONGEST = 300
"characters of an error that are shown"


def import_error(hardware: Hardware, error: str) -> Finding:
    """The failure, explained by the first reason whose pattern matches the error."""
    reason = first_match("imports", error)
    shown = error if len(error) <= LONGEST else f"{error[:LONGEST]} …"
    version = hardware.software.packages.get("torch")
    return Finding(
        f"torch.{reason['id']}",
        Severity.FAILURE,
        f"torch{f' {version}' if version else ''} does not import: {shown}",
        reason["why"].replace("{cpu}", hardware.host.cpu_name),
        where=("torch",),
        affects=("training",),
        remedies=REMEDIES[reason["id"]](hardware),
    )


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


REMEDIES: Mapping[str, Callable[[Hardware], tuple[Remedy, ...]]] = {
    "hangs": lambda hardware: (_trace(hardware), *_reinstall(hardware)),
    "illegal_instruction": _old_cpu,
    "killed": lambda hardware: (Remedy("give this process at least 4 GiB of memory", Step.CONTAINER),),
    "crashes": lambda hardware: (*_reinstall(hardware), _trace(hardware)),
    "system_too_old": _newer_system,
    "runtime_too_old": _newer_runtime,
    "undefined_symbol": _conflict,
    "driver_library_missing": lambda hardware: (),
    "library_missing": _reinstall,
    "numpy": _numpy,
    "no_room": _room,
    "incomplete": _reinstall,
    "fails": lambda hardware: (*_reinstall(hardware), _trace(hardware)),
}
"by the id of the reason"
