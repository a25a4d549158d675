"""Which features of the installed bitsandbytes work on the devices.

A wheel has one library for each of several CUDA versions, with different machine code. The CUDA version of torch, or
`BNB_CUDA_VERSION`, decides which one is loaded. The contents of each library come from a table of the doctor's
knowledge; a version newer than the table is assumed to match the newest row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_compat.capability.binaries import parse_version, wheel_supports
from rl_compat.capability.devices import NEEDS_CUDA, against_package, below, capability_text, describe, on_cpu
from rl_compat.hardware.gpu.catalogue import capability_of, read_table
from rl_compat.hardware.types import Device, Hardware

OVERRIDE = "BNB_CUDA_VERSION"
NOT_LISTED = ("aarch64", "arm64")
"processors whose wheels contain other code than the table lists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One native library of a wheel."""

    cuda: str
    "the CUDA version in its name: `12.6`"
    arch_list: tuple[str, ...]

    @property
    def file(self) -> str:
        return library_file(self.cuda)


def missing(hardware: Hardware, *, feature: str) -> tuple[str, ...]:
    """All reasons why a feature does not work: `optimizer_8bit`, `nf4` or `llm_int8`."""
    if on_cpu(hardware):
        return NEEDS_CUDA
    software = hardware.software
    version = software.packages.get("bitsandbytes")
    if version is None:
        return against_package(hardware, "bitsandbytes")
    library = software.bitsandbytes_library
    if library == "cpu":
        return ("`bitsandbytes` has no GPU library: it found only `libbitsandbytes_cpu`",)
    if library is not None and library != "cuda":
        return (f"`bitsandbytes` does not load: {library}",)
    return (*below(hardware, minimum(feature, version)), *missing_code(hardware))


def missing_code(hardware: Hardware) -> tuple[str, ...]:
    """A reason for each device that the loaded library has no code for; none if that is unknown."""
    version, cuda = hardware.software.packages.get("bitsandbytes"), wanted_cuda(hardware)
    if version is None or cuda is None or hardware.host.platform.split()[-1].lower() in NOT_LISTED:
        return ()
    library = find_library(version, cuda, exact=OVERRIDE in hardware.environment)
    if library is None:
        return (f"`bitsandbytes` {version} has no library for CUDA {cuda}",)
    return tuple(
        f"`{library.file}` of `bitsandbytes` {version} has no code for {describe(device)}, compute capability "
        f"{capability_text(device)}: it has {', '.join(library.arch_list)}"
        for device in hardware.devices
        if not runs(library, device)
    )


def runs(library: Library, device: Device) -> bool:
    """Whether a library has code for a device."""
    return wheel_supports(library.arch_list, device.compute_capability, cuda=library.cuda)


def wanted_cuda(hardware: Hardware) -> str | None:
    """The CUDA version of the library to load: the override's or torch's; None without either."""
    override = hardware.environment.get(OVERRIDE, "")
    if override.isdigit() and len(override) >= 3:
        return f"{override[:-1]}.{override[-1]}"
    torch = hardware.software.torch
    return torch.cuda if torch is not None else None


def library_file(cuda: str) -> str:
    """The name of the library for a CUDA version."""
    return f"libbitsandbytes_cuda{cuda.replace('.', '')}.so"


def find_library(version: str, cuda: str, *, exact: bool = False) -> Library | None:
    """The library that a version loads for a CUDA version; None if it has none.

    Without `exact`, a missing version falls back to the newest older one of the same major version, then to the oldest
    newer one.
    """
    wanted = parse_version(cuda)[:2]
    libraries: list[Mapping[str, Any]] = _at(read_table("bitsandbytes")["wheels"], version)["libraries"]
    ranges = [(parse_version(row["cuda_min"]), parse_version(row["cuda_max"]), row) for row in libraries]
    for low, high, row in ranges:
        if low <= wanted <= high:
            return _library(row, cuda)
    if exact:
        return None
    same = [(low, high, row) for low, high, row in ranges if low[0] == wanted[0]]
    older = [entry for entry in same if entry[1] < wanted]
    if older:
        _, _, row = max(older, key=lambda entry: entry[1])
        return _library(row, row["cuda_max"])
    if same:
        _, _, row = min(same, key=lambda entry: entry[0])
        return _library(row, row["cuda_min"])
    return None


def minimum(feature: str, version: str) -> tuple[int, int]:
    """Lowest compute capability at which a feature works in a version."""
    rows = [row for row in read_table("bitsandbytes")["features"] if row["id"] == feature]
    return capability_of(_at(rows, version)["cc_min"])


def _at(rows: list[Mapping[str, Any]], version: str) -> Mapping[str, Any]:
    """The row of the nearest release that is not newer; the newest row for a version without a number."""
    installed = parse_version(version)
    known = [row for row in rows if not installed or parse_version(row["version_min"]) <= installed]
    return max(known, key=lambda row: parse_version(row["version_min"]))


def _library(row: Mapping[str, Any], cuda: str) -> Library:
    machine_code = tuple(f"sm_{arch}" for arch in row["archs"])
    return Library(cuda=cuda, arch_list=machine_code + ((f"compute_{row['ptx']}",) if row["ptx"] else ()))
