"""Whether bitsandbytes supports 8-bit optimizers and 4-bit weights on these cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.bitsandbytes import OVERRIDE, find_library, library_file, missing_code, runs, wanted_cuda
from rl_compat.capability.devices import torch_has_code
from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok
from rl_compat.doctor.remedies import pip_install, pip_uninstall, unset
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.rows import is_unknown, required, row_for, satisfies
from rl_compat.doctor.tables.target import target_of
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware
from rl_compat.units import GIB, format_bytes

NAME = "bitsandbytes"
SMALL_MEMORY_BYTES = 12 * GIB
"on cards up to this size, 8-bit optimizers make room for a larger model"
INSTALLED = "installed packages"


def check_bitsandbytes(hardware: Hardware) -> Iterator[Finding]:
    """Nothing on a machine without a GPU: the planner uses it on cards only."""
    if not hardware.devices:
        return
    software = hardware.software
    version, library = software.packages.get(NAME), software.bitsandbytes_library
    if version is None:
        if software.packages:
            yield _absent(hardware)
    elif library == "cpu":
        yield _without_gpu_library(hardware, version)
    elif library not in (None, "cuda"):
        yield _broken(hardware, version, "does_not_load", f"{NAME} {version} does not load its library: {library}")
    elif reasons := missing_code(hardware):
        yield _without_code(hardware, version, reasons)
    else:
        yield _mismatch(hardware, version) or _works(hardware, version)


def _absent(hardware: Hardware) -> Finding:
    least = min(hardware.devices, key=lambda device: device.memory_total_bytes)
    fitting = fitting_release(hardware)
    small = least.memory_total_bytes <= SMALL_MEMORY_BYTES and fitting is not None
    what = f"{NAME} is not installed"
    return finding(
        "bitsandbytes.missing",
        f"{what}, and `{least.name}` has {format_bytes(least.memory_total_bytes)}" if small else what,
        *((_install(hardware, fitting),) if small and fitting else ()),
        severity=Severity.NOTE if small else Severity.OK,
    )


def _without_gpu_library(hardware: Hardware, version: str) -> Finding:
    """Installed without a GPU library, because of torch, the override, or the installation."""
    cuda, torch = wanted_cuda(hardware), hardware.software.torch
    by_torch = torch is not None and not torch.cuda_available
    if torch is not None and by_torch:
        cause = f"torch {torch.version} has no usable GPU"
    elif cuda is None:
        cause = "the CUDA version of torch is unknown"
    elif find_library(version, cuda, exact=OVERRIDE in hardware.environment) is None:
        cause = f"it needs `{library_file(cuda)}`, which this release does not contain"
    else:
        cause = f"it did not find `{library_file(cuda)}`"
    what = f"{NAME} {version} is installed but loaded `libbitsandbytes_cpu.so`, without a GPU library: {cause}"
    return _broken(hardware, version, "no_gpu_library", what, by_torch=by_torch)


def _without_code(hardware: Hardware, version: str, reasons: tuple[str, ...]) -> Finding:
    """If torch itself lacks code for a card, that is reported by its own check."""
    torch = hardware.software.torch
    by_torch = torch is not None and not all(torch_has_code(torch, device) for device in hardware.devices)
    what = "; ".join(reasons) + ("; this torch, whose CUDA version it follows, has none either" if by_torch else "")
    return _broken(hardware, version, "no_code", what, by_torch=by_torch)


def _broken(hardware: Hardware, version: str, case: str, what: str, *, by_torch: bool = False) -> Finding:
    """A finding about the library; not a problem of its own if torch causes it."""
    return finding(
        f"bitsandbytes.{case}",
        what,
        *(() if by_torch else _remedies(hardware, version)),
        severity=Severity.OK if by_torch else Severity.WARNING,
        affects=device_ids(hardware.devices),
    )


def _mismatch(hardware: Hardware, version: str) -> Finding | None:
    """A release for another torch, or older than the oldest that is supported."""
    row = row_for(read_table(NAME)["wheels"], version)
    torch, floor = hardware.software.torch, _floor()
    if row is None or is_unknown(NAME, version):
        return None
    if not satisfies(version, floor):
        what = f"{NAME} {version} is older than what rl_compat requires, {floor}"
    elif torch is not None and not satisfies(torch.version, row["torch"]):
        what = f"{NAME} {version} needs torch {row['torch']}, this is {torch.version}"
    else:
        return None
    return finding("bitsandbytes.mismatch", what, *_remedies(hardware, version))


def _works(hardware: Hardware, version: str) -> Finding:
    loaded = hardware.software.bitsandbytes_library is not None
    newer = "; it is newer than the tables" if is_unknown(NAME, version) else ""
    verb = "loads its GPU library" if loaded else "should load a GPU library"
    what = f"{NAME} {version} {verb} with code for {with_capability(hardware.devices)}{newer}"
    return ok("bitsandbytes.works", what, NAME if loaded else INSTALLED)


def _remedies(hardware: Hardware, version: str) -> tuple[Remedy, ...]:
    """Best first: unset the override, install a matching release, uninstall the package."""
    found = [unset(OVERRIDE)] if OVERRIDE in hardware.environment else []
    fitting = fitting_release(hardware)
    if fitting is not None:
        found.append(_install(hardware, fitting, again=fitting == version))
    none = "" if found else "no listed release supports this card with this torch: "
    what = f"{none}uninstall {NAME}; training then uses the 32-bit optimizer"
    return (*found, pip_uninstall(hardware, what, NAME))


def _install(hardware: Hardware, version: str, *, again: bool = False) -> Remedy:
    arguments = ["--force-reinstall", "--no-deps"] if again else []
    cuda = hardware.software.torch.cuda if hardware.software.torch else None
    library = find_library(version, cuda) if cuda else None
    has = f", whose `{library.file}` has code for the cards here" if library else ""
    what = f"{'reinstall' if again else 'install'} {NAME} {version}{has}"
    return pip_install(hardware, what, *arguments, f"{NAME}=={version}")


def fitting_release(hardware: Hardware) -> str | None:
    """The newest listed release with code for every card under the current torch and Python; None if there is none."""
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
