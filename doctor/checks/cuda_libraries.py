"""Do the CUDA libraries that torch brings (cuDNN, cuBLAS) still have code for these cards?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rl_compat.capability.devices import capability_text, torch_has_code
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import pip_install
from rl_compat.doctor.tables.rows import is_unknown, library_row, pinned_library, serves
from rl_compat.hardware.gpu.binaries import TEGRA, parse_version
from rl_compat.hardware.types import Device, Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A library, the packages that bring it, and what goes without it."""

    name: str
    packages: tuple[str, ...]
    severity: Severity
    why: str


KINDS = (
    Kind(
        name="cuDNN",
        packages=("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
        severity=Severity.WARNING,
        why="convolutions and everything else of cuDNN die with `no kernel image` or CUDNN_STATUS_NOT_SUPPORTED; "
        "language models hardly use it",
    ),
    Kind(
        name="cuBLAS",
        packages=("nvidia-cublas-cu12", "nvidia-cublas"),
        severity=Severity.FAILURE,
        why="matrix products, and with them all of training, die with CUBLAS_STATUS_ARCH_MISMATCH",
    ),
)


def look_at_cuda_libraries(hardware: Hardware) -> Iterator[Finding]:
    """Nothing without a GPU, or where torch does not take its libraries from packages."""
    torch = hardware.software.torch
    if not hardware.devices or hardware.emulated is not None or torch is None or torch.cuda is None:
        return
    fine = []
    for kind in KINDS:
        found = list(_look_at(hardware, kind))
        fine += [text for text in found if isinstance(text, str)]
        yield from (finding for finding in found if isinstance(finding, Finding))
    if fine:
        yield Finding(
            id="cuda_libraries.fine",
            severity=Severity.OK,
            what=f"with code for the cards here: {', '.join(fine)}",
            where=("installed packages",),
        )


def _look_at(hardware: Hardware, kind: Kind) -> Iterator[Finding | str]:
    """A finding, or name and version of a library that is fine. Only the package for torch's own CUDA counts."""
    torch = hardware.software.torch
    assert torch is not None
    assert torch.cuda is not None
    major = torch.cuda.partition(".")[0]
    for package in kind.packages:
        version = hardware.software.packages.get(package)
        if version is None or _cuda_major(package) != major:
            continue
        row = library_row(package, version)
        lacking = [device for device in _asked(hardware) if row and not serves(row["sm"], device.compute_capability)]
        pinned = pinned_library(package, torch.version, _variant(torch.cuda))
        if lacking and not is_unknown(package, version) and not _too_old_for(package, version, lacking):
            yield _without_code(hardware, kind, package, version, pinned, lacking)
        elif pinned and parse_version(version) > parse_version(pinned) and not is_unknown(package, version):
            yield _upgraded(hardware, kind, package, version, pinned)
        else:
            yield f"{kind.name} {version}"


def _asked(hardware: Hardware) -> list[Device]:
    """The cards that torch itself has code for. Integrated devices have libraries of their own."""
    torch = hardware.software.torch
    assert torch is not None
    return [
        device
        for device in hardware.devices
        if device.compute_capability not in TEGRA and torch_has_code(torch, device)
    ]


def _too_old_for(package: str, version: str, lacking: list[Device]) -> bool:
    """Whether a newer release would rather serve the cards, and driver-compiled PTX may: nothing is known then."""
    row = library_row(package, version)
    assert row is not None
    return any(device.compute_capability > (max(row["sm"]) // 10, max(row["sm"]) % 10) for device in lacking)


def _without_code(
    hardware: Hardware, kind: Kind, package: str, version: str, pinned: str | None, lacking: list[Device]
) -> Finding:
    row = library_row(package, version)
    assert row is not None
    cards = ", ".join(dict.fromkeys(f"{device.name} ({capability_text(device)})" for device in lacking))
    return Finding(
        id=f"cuda_libraries.{kind.name.lower()}",
        severity=kind.severity,
        what=f"{package} {version} has no code for {cards}: it begins with sm_{min(row['sm'])}",
        why=kind.why,
        where=("installed packages",),
        affects=tuple(f"cuda:{device.index}" for device in lacking),
        remedies=_back_to(hardware, package, version, pinned, lacking),
    )


def _upgraded(hardware: Hardware, kind: Kind, package: str, version: str, pinned: str) -> Finding:
    torch = hardware.software.torch
    assert torch is not None
    return Finding(
        id=f"cuda_libraries.{kind.name.lower()}_upgraded",
        severity=Severity.NOTE,
        what=f"{package} {version} is newer than {pinned}, which torch {torch.version} was built with",
        why="mostly harmless; the first thing to take back when an operation fails strangely",
        where=("installed packages",),
        remedies=(_install(hardware, package, pinned),),
    )


def _back_to(
    hardware: Hardware, package: str, version: str, pinned: str | None, lacking: list[Device]
) -> tuple[Remedy, ...]:
    """The release that torch asks for, where that one has code for the cards."""
    row = library_row(package, pinned) if pinned else None
    serving = row is not None and all(serves(row["sm"], device.compute_capability) for device in lacking)
    if pinned is not None and serving and pinned != version:
        return (_install(hardware, package, pinned),)
    return ()


def _install(hardware: Hardware, package: str, version: str) -> Remedy:
    return Remedy(
        what=f"go back to {package} {version}, the release that torch asks for, and do not upgrade it",
        step=Step.PACKAGE,
        commands=(pip_install(hardware, "--no-deps", f"{package}=={version}"),),
    )


def _cuda_major(package: str) -> str:
    return "12" if package.endswith("cu12") else "13"


def _variant(cuda: str) -> str:
    return f"cu{cuda.replace('.', '')}"


CHECK = Check(
    id="cuda_libraries",
    question="do cuDNN and cuBLAS have code for these cards, and are they the ones that torch asks for?",
    run=look_at_cuda_libraries,
    needs_torch=True,
)
