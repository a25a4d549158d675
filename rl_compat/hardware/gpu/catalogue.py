"""The table of known GPUs, and hardware that emulates one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Any

from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import GIB, format_bytes

USABLE_FRACTION = 15 / 16
"""Fraction of the nominal memory that a program can use. Inline ECC takes 1/16 on GDDR boards (a Tesla P40 has 22.5 of
24 GiB), and the context and the driver's reserve take about as much on the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card of the catalogue."""

    id: str
    name: str
    "as NVML prints it"
    names: tuple[str, ...]
    form: str
    "`datacenter`, `workstation`, `consumer`, `mobile` or `jetson`"
    compute_capability: tuple[int, int]
    memory_bytes: int
    num_multiprocessors: int | None
    fp32_tflops: float | None
    "10^12 operations per second; None where unknown"


def capability_of(text: str) -> tuple[int, int]:
    """`6.1` as (6, 1)."""
    major, minor = text.split(".")
    return int(major), int(minor)


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """One JSON table of the knowledge folder, by file name without `.json`."""
    table: dict[str, Any] = json.loads(files("rl_compat.doctor").joinpath("knowledge", f"{name}.json").read_text())
    return table


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every card of the catalogue, oldest architecture first."""
    return tuple(_gpu(row) for row in read_table("gpus")["gpus"])


def find_gpu(name: str, memory_bytes: int | None = None) -> Gpu | None:
    """The card with this NVML, torch, MIG or vGPU name, or catalogue id; None if it is not in the table.

    Cards with the same name are distinguished by memory: the nearest, or the first if `memory_bytes` is not given.
    """
    matches = _by_name().get(_plain(name), ())
    if memory_bytes is None or not matches:
        return matches[0] if matches else None
    return min(matches, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes))


@cache
def _by_name() -> dict[str, tuple[Gpu, ...]]:
    """The cards of each name, oldest architecture first."""
    found: dict[str, tuple[Gpu, ...]] = {}
    for gpu in all_gpus():
        for name in dict.fromkeys(map(_plain, (gpu.id, *gpu.names))):
            found[name] = (*found.get(name, ()), gpu)
    return found


def nearest_gpus(name: str, count: int = 3) -> tuple[str, ...]:
    """Names of cards similar to `name`, best first."""
    wanted = _plain(name)

    def likeness(gpu: Gpu) -> float:
        known = [_plain(text) for text in (gpu.id, gpu.name)]
        return max(SequenceMatcher(None, wanted, text).ratio() + (wanted in text) for text in known)

    ranked = sorted(all_gpus(), key=likeness, reverse=True)
    return tuple(dict.fromkeys(gpu.name for gpu in ranked[: count + 3]))[:count]


def shared_memory_optin_bytes(capability: tuple[int, int]) -> int | None:
    """Largest shared memory per block by compute capability; None if unknown."""
    for row in read_table("compute_capability")["capabilities"]:
        if capability_of(row["cc"]) == capability:
            return int(row["smem_per_block_optin_kb"]) * 1024
    return None


def emulated_hardware(name: str, base: Hardware) -> Hardware:
    """`base` with the named card as its only GPU. Raises HardwareError for an unknown card.

    Everything else is that of `base`: `software.torch.cuda_available` says whether there is a real GPU.
    """
    gpu = find_gpu(name)
    if gpu is None:
        near = ", ".join(f"`{known}`" for known in nearest_gpus(name))
        raise HardwareError(f"`{name}` is not in the catalogue of cards", hint=f"the nearest names are {near}")
    return replace(
        base,
        devices=(_device_of(gpu),),
        hidden_devices=(),
        warnings=(*base.warnings, *_emulation_warnings(gpu, base)),
        emulated=gpu.name,
    )


def _emulation_warnings(gpu: Gpu, base: Hardware) -> tuple[str, ...]:
    warnings = []
    for device in base.devices[:1]:
        if device.memory_free_bytes < gpu.memory_bytes * USABLE_FRACTION:
            warnings.append(
                f"`{gpu.name}` is emulated with {format_bytes(gpu.memory_bytes)}, "
                f"`{device.name}` has {format_bytes(device.memory_free_bytes)} free"
            )
    return tuple(warnings)


def _device_of(gpu: Gpu) -> Device:
    values = {
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "memory_total_bytes": gpu.memory_bytes,
        "memory_free_bytes": int(gpu.memory_bytes * USABLE_FRACTION),
        "num_multiprocessors": gpu.num_multiprocessors,
        "shared_memory_optin_bytes": shared_memory_optin_bytes(gpu.compute_capability),
        "bf16_native": gpu.compute_capability >= (8, 0),
    }
    return Device(index=0, processes=(), sources=dict.fromkeys(values, "catalogue"), **values)  # type: ignore[arg-type]


def _gpu(row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        id=row["id"],
        name=row["nvml_names"][-1] if row["form"] != "jetson" else row["nvml_names"][0],
        names=tuple(row["nvml_names"]),
        form=row["form"],
        compute_capability=capability_of(row["cc"]),
        memory_bytes=int(row["memory_gb"] * GIB),
        num_multiprocessors=row["sm_count"],
        fp32_tflops=row["fp32_tflops"],
    )


def _plain(name: str) -> str:
    """Lower case, without `NVIDIA `, a MIG profile or a vGPU profile."""
    text = re.sub(r"\s+", " ", name.strip().lower()).removeprefix("nvidia ")
    text = re.sub(r" mig \S+$", "", text)
    return re.sub(r"-[0-9]+[cqab]$", "", text)
