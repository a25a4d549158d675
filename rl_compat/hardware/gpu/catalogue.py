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

from rl_compat.errors import HardwareError, quoted
from rl_compat.hardware.types import Device, Hardware, TorchBuild
from rl_compat.units import GIB, format_bytes

USABLE_FRACTION = 15 / 16
"""Fraction of the nominal memory that a program can use. Inline ECC takes 1/16 on GDDR boards (a Tesla P40 has 22.5 of
24 GiB), and the context and the driver's reserve take about as much on the others."""

UNSAID = re.compile(r"\b(nvidia|geforce|tesla|[rg]tx(?= )|gpu|pascal|[0-9]+gb?|hbm3e)\b")
"words that need not be said: brands, the Pascal of one of two cards of the name Titan X, and memory"
NUM_NEAREST = 3


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
    file = files("rl_compat.doctor").joinpath("knowledge", f"{name}.json")
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every card of the catalogue, oldest architecture first."""
    return tuple(
        Gpu(
            id=row["id"],
            name=row["nvml_names"][-1] if row["form"] != "jetson" else row["nvml_names"][0],
            names=tuple(row["nvml_names"]),
            form=row["form"],
            compute_capability=capability_of(row["cc"]),
            memory_bytes=int(row["memory_gb"] * GIB),
            num_multiprocessors=row["sm_count"],
            fp32_tflops=row["fp32_tflops"],
        )
        for row in read_table("gpus")["gpus"]
    )


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


def choose_gpu(name: str) -> Gpu:
    """The only card that `name` can mean, such as `4090`, `RTX 3080 12GB` or `a100 pcie 40gb`.

    Raises HardwareError for no card, with the nearest names, and for several, with all of them.
    """
    wanted, plain = set(_words(name)), _plain(name)
    found = [gpu for gpu in all_gpus() if gpu.id == plain] or list(_by_name().get(plain, ()))
    for exact in (True, False):
        found = found or [gpu for gpu in all_gpus() if _means(wanted, gpu, exact)]
    if len(found) == 1:
        return found[0]
    if not found:
        near = quoted(_nearest_names(name))
        raise HardwareError(f"`{name}` is not in the catalogue of cards", hint=f"the nearest names are {near}")
    cards = ", ".join(f"`{gpu.id}` ({gpu.name}, {format_bytes(gpu.memory_bytes)})" for gpu in found)
    raise HardwareError(f"`{name}` can be {len(found)} cards", hint=f"give one of {cards}")


def _means(wanted: set[str], gpu: Gpu, exact: bool) -> bool:
    """Whether a card has all wanted words in one of its names or its id; if `exact`, also no other word."""
    memory = f"{gpu.memory_bytes // GIB}gb"
    for form in map(_words, (gpu.id, *gpu.names)):
        others = set(UNSAID.sub("", " ".join(form)).split()) - wanted
        known = {memory, *form, *(word.rstrip("0123456789") for word in form)}
        if wanted and wanted <= known and not (exact and others):
            return True
    return False


def _words(name: str) -> list[str]:
    """`rtx4090ti 24 GiB` as `rtx`, `4090`, `ti`, `24gb`."""
    text = re.sub(r"\b(rtx(?=[0-9])|gtx(?=[0-9])|titan(?=[xv]))", r"\1 ", _plain(name))
    text = re.sub(r"\b([0-9]{3,4})(ti|super)\b", r"\1 \2", text)
    return re.findall(r"[a-z0-9]+", re.sub(r"\b([0-9]+) ?gi?b?\b", r"\1gb", text))


def _nearest_names(name: str) -> tuple[str, ...]:
    """Names of cards similar to `name`, best first."""
    wanted = _plain(name)

    def likeness(gpu: Gpu) -> float:
        return max(SequenceMatcher(None, wanted, _plain(text)).ratio() for text in (gpu.id, gpu.name))

    ranked = sorted(all_gpus(), key=likeness, reverse=True)
    return tuple(dict.fromkeys(gpu.name for gpu in ranked[: 2 * NUM_NEAREST]))[:NUM_NEAREST]


def shared_memory_optin_bytes(capability: tuple[int, int]) -> int | None:
    """Largest shared memory per block by compute capability; None if unknown."""
    for row in read_table("compute_capability")["capabilities"]:
        if capability_of(row["cc"]) == capability:
            return int(row["smem_per_block_optin_kb"]) * 1024
    return None


def emulated_hardware(name: str, base: Hardware) -> Hardware:
    """`base` with the named card in place of each GPU, or as its only one. Raises HardwareError for an unclear name.

    Everything else is that of `base`: `software.torch.cuda_available` says whether there is a real GPU.
    """
    gpu = choose_gpu(name)
    indices = [device.index for device in base.devices]
    warnings = [
        f"`{gpu.name}` is emulated with {format_bytes(gpu.memory_bytes)}, "
        f"`{device.name}` has {format_bytes(device.memory_free_bytes)} free"
        for device in base.devices[:1]
        if device.memory_free_bytes < gpu.memory_bytes * USABLE_FRACTION
    ]
    shown = tuple(replace(_device_of(gpu), index=index) for index in indices or [0])
    return replace(base, devices=shown, hidden_devices=(), warnings=(*base.warnings, *warnings), emulated=gpu.name)


def other_machine(name: str, base: Hardware) -> Hardware:
    """A machine that has the named card, a torch for it, and the host and packages of `base`. Raises HardwareError."""
    device = _device_of(choose_gpu(name))
    torch = base.software.torch or TorchBuild(version=base.software.packages.get("torch", "0"))
    cuda = torch.cuda or ("12.8" if device.compute_capability >= (10, 0) else "12.6")
    software = replace(base.software, torch=replace(torch, cuda=cuda, arch_list=(), cuda_available=True))
    return replace(base, devices=(device,), hidden_devices=(), software=software, warnings=(), emulated=None)


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


def _plain(name: str) -> str:
    """Lower case, without `NVIDIA `, a MIG profile or a vGPU profile."""
    text = re.sub(r"\s+", " ", name.strip().lower()).removeprefix("nvidia ")
    text = re.sub(r" mig \S+$", "", text)
    return re.sub(r"-[0-9]+[cqab]$", "", text)
