"""Can the installed bitsandbytes serve 8-bit optimizers and 4-bit weights on these cards?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_compat.capability.bitsandbytes import (
    OVERRIDE,
    find_library,
    library_file,
    missing_code,
    runs,
    wanted_cuda,
)
from rl_compat.capability.devices import capability_text, torch_has_code
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import pip_install, pip_uninstall, unset
from rl_compat.doctor.tables.rows import is_unknown, required, row_for, satisfies
from rl_compat.doctor.tables.target import target_of
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware
from rl_compat.units import GIB, format_bytes

NAME = "bitsandbytes"
SMALL_MEMORY_BYTES = 12 * GIB
"cards up to this size gain whole model sizes from 8-bit optimizers"
WHY = "without it no `optimizer.name=adamw8bit` and no 4-bit base under LoRA: full optimizers need 8 bytes a parameter"


def look_at_bitsandbytes(hardware: Hardware) -> Iterator[Finding]:
    """Nothing on a machine without a GPU: the planner uses it on cards only."""
    if not hardware.devices:
        return
    software = hardware.software
    version = software.packages.get(NAME)
    if version is None:
        if software.packages:
            yield _absent(hardware)
        return
    library = software.bitsandbytes_library
    if library == "cpu":
        yield _without_gpu_library(hardware, version)
    elif library not in (None, "cuda"):
        yield _does_not_load(hardware, version, library)
    elif reasons := missing_code(hardware):
        yield _without_code(hardware, version, reasons)
    elif mismatch := _mismatch(hardware, version):
        yield mismatch
    else:
        yield _works(hardware, version)


def _absent(hardware: Hardware) -> Finding:
    least = min(hardware.devices, key=lambda device: device.memory_total_bytes)
    fitting = fitting_release(hardware)
    small = least.memory_total_bytes <= SMALL_MEMORY_BYTES and fitting is not None
    what = f"{NAME} is not installed"
    return Finding(
        id="bitsandbytes.missing",
        severity=Severity.NOTE if small else Severity.OK,
        what=f"{what}, and `{least.name}` has {format_bytes(least.memory_total_bytes)}" if small else what,
        why="its 8-bit optimizer keeps 2 bytes a parameter instead of 8, its 4-bit weights a quarter of fp16",
        where=("installed packages",),
        affects=("training",),
        remedies=(_install(hardware, fitting),) if small and fitting else (),
    )


def _without_gpu_library(hardware: Hardware, version: str) -> Finding:
    """Installed, no GPU library: by torch's doing, the override's, or that of the installation."""
    cuda, torch = wanted_cuda(hardware), hardware.software.torch
    by_torch = torch is not None and not torch.cuda_available
    if torch is not None and by_torch:
        cause = f"torch {torch.version} reaches no GPU"
    elif cuda is None:
        cause = "the CUDA version of torch is not known"
    elif find_library(version, cuda, exact=OVERRIDE in hardware.environment) is None:
        cause = f"it looked for `{library_file(cuda)}`, which this version does not bring"
    else:
        cause = f"it looked for `{library_file(cuda)}`"
    return Finding(
        id="bitsandbytes.no_gpu_library",
        severity=Severity.OK if by_torch else Severity.WARNING,
        what=f"{NAME} {version} is installed, no GPU library: {cause}, and it loaded `libbitsandbytes_cpu.so`",
        why=WHY,
        where=("bitsandbytes",),
        affects=_devices(hardware),
        remedies=() if by_torch else _remedies(hardware, version),
    )


def _does_not_load(hardware: Hardware, version: str, error: str) -> Finding:
    return Finding(
        id="bitsandbytes.does_not_load",
        severity=Severity.WARNING,
        what=f"{NAME} {version} does not load its library: {error}",
        why=WHY,
        where=("bitsandbytes",),
        affects=_devices(hardware),
        remedies=_remedies(hardware, version),
    )


def _without_code(hardware: Hardware, version: str, reasons: tuple[str, ...]) -> Finding:
    """Where torch itself lacks code for a card the library, which follows it, is no news."""
    torch = hardware.software.torch
    by_torch = torch is not None and not all(torch_has_code(torch, device) for device in hardware.devices)
    return Finding(
        id="bitsandbytes.no_code",
        severity=Severity.OK if by_torch else Severity.WARNING,
        what="; ".join(reasons) + ("; nor has this torch, whose CUDA version it follows" if by_torch else ""),
        why=f"its first operation on such a card dies with `no kernel image is available`; {WHY}",
        where=("torch", "installed packages"),
        affects=_devices(hardware),
        remedies=() if by_torch else _remedies(hardware, version),
    )


def _mismatch(hardware: Hardware, version: str) -> Finding | None:
    """A release that wants another torch, or one before the oldest that is supported."""
    row = row_for(read_table(NAME)["wheels"], version)
    torch, floor = hardware.software.torch, _floor()
    if row is None or is_unknown(NAME, version):
        return None
    if not satisfies(version, floor):
        what = f"{NAME} {version} is older than what rl_compat works with, {floor}"
    elif torch is not None and not satisfies(torch.version, row["torch"]):
        what = f"{NAME} {version} needs torch {row['torch']}, this is {torch.version}"
    else:
        return None
    return Finding(
        id="bitsandbytes.mismatch",
        severity=Severity.WARNING,
        what=what,
        why=WHY,
        where=("installed packages",),
        affects=("training",),
        remedies=_remedies(hardware, version),
    )


def _works(hardware: Hardware, version: str) -> Finding:
    cards = ", ".join(sorted({f"{device.name} ({capability_text(device)})" for device in hardware.devices}))
    looked = hardware.software.bitsandbytes_library is not None
    loaded = "loads its GPU library" if looked else "should load a GPU library"
    newer = ", and is newer than the tables" if is_unknown(NAME, version) else ""
    return Finding(
        id="bitsandbytes.works",
        severity=Severity.OK,
        what=f"{NAME} {version} {loaded} with code for {cards}{newer}",
        where=("bitsandbytes",) if looked else ("installed packages",),
    )


def _remedies(hardware: Hardware, version: str) -> tuple[Remedy, ...]:
    """Best first: the override away, a release that fits, the package away."""
    found = []
    if OVERRIDE in hardware.environment:
        found.append(unset(OVERRIDE))
    fitting = fitting_release(hardware)
    if fitting is not None:
        found.append(_install(hardware, fitting, again=fitting == version))
    found.append(
        Remedy(
            what=f"{'' if found else 'no listed release serves this card with this torch: '}uninstall {NAME}; "
            "training goes on with the 32-bit optimizer",
            step=Step.PACKAGE,
            commands=(pip_uninstall(hardware, NAME),),
        )
    )
    return tuple(found)


def _install(hardware: Hardware, version: str, *, again: bool = False) -> Remedy:
    arguments = ["--force-reinstall", "--no-deps"] if again else []
    cuda = hardware.software.torch.cuda if hardware.software.torch else None
    library = find_library(version, cuda) if cuda else None
    brings = f", whose `{library.file}` has code for the cards here" if library else ""
    return Remedy(
        what=f"{'reinstall' if again else 'install'} {NAME} {version}{brings}",
        step=Step.PACKAGE,
        commands=(pip_install(hardware, *arguments, f"{NAME}=={version}"),),
    )


def fitting_release(hardware: Hardware) -> str | None:
    """The newest listed release with code for every card under the present torch and Python; None without one."""
    torch = hardware.software.torch
    if torch is None or torch.cuda is None:
        return None
    rows = sorted(read_table(NAME)["wheels"], key=lambda row: parse_version(row["version_min"]), reverse=True)
    return next((str(row["newest"]) for row in rows if _fits(hardware, row, torch.version, torch.cuda)), None)


def _fits(hardware: Hardware, row: Mapping[str, Any], torch: str, cuda: str) -> bool:
    library = find_library(row["newest"], cuda)
    return (
        library is not None
        and all(runs(library, device) for device in hardware.devices)
        and satisfies(torch, row["torch"])
        and satisfies(target_of(hardware).python, row["python"])
        and satisfies(row["newest"], _floor())
    )


def _floor() -> str:
    return next(str(row["versions"]) for row in required("quant") if row["package"] == NAME)


def _devices(hardware: Hardware) -> tuple[str, ...]:
    return tuple(f"cuda:{device.index}" for device in hardware.devices)


CHECK = Check(
    id="bitsandbytes",
    question="can bitsandbytes serve 8-bit optimizers and 4-bit weights on these cards?",
    run=look_at_bitsandbytes,
    needs_torch=True,
    wants_imports=True,
)
