"""Every NVIDIA card of a machine: those that CUDA shows, those that the driver lists, those on the PCI bus only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rl_compat.doctor.tables.rows import Capability, capability_text
from rl_compat.hardware.gpu.catalogue import capability_of, find_gpu, read_table
from rl_compat.hardware.gpu.cuda_view import pci_key
from rl_compat.hardware.types import Device, Hardware, PciGpu, Process

DISPLAY = re.compile(r"\b(Xorg|Xwayland|X|gnome-shell|kwin\w*|plasmashell|mutter|sway|weston|Hyprland|sddm|gdm)\b")
"programs that draw a desktop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card, under the best name known for it."""

    name: str
    capability: Capability | None
    where: str
    "`cuda:0`, `nvidia-smi 1` or `PCI 0000:03:00.0`"
    listed: bool
    "CUDA or NVML lists it"
    kernel_driver: str | None = None
    "of a card that is on the PCI bus only"
    large_bar: bool = False
    "a data-centre card, which needs gigabytes of address space above 4 GiB"


def all_cards(hardware: Hardware) -> tuple[Card, ...]:
    """Visible cards, then hidden ones, then those on the PCI bus only; empty for an emulated card."""
    if hardware.emulated is not None:
        return ()
    return (
        *(_listed(device, f"cuda:{device.index}") for device in hardware.devices),
        *(_listed(device, f"nvidia-smi {device.index}") for device in hardware.hidden_devices),
        *(_on_the_bus(gpu) for gpu in _unlisted(hardware)),
    )


def names(cards: Iterable[Card | Device]) -> str:
    """`2 × NVIDIA A10, Tesla T4`, in order of appearance."""
    counts: dict[str, int] = {}
    for card in cards:
        counts[card.name] = counts.get(card.name, 0) + 1
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())


def with_capability(devices: Iterable[Device]) -> str:
    """`2 × NVIDIA A10 (compute capability 8.6), Tesla T4 (compute capability 7.5)`."""
    groups: dict[tuple[str, Capability], list[Device]] = {}
    for device in devices:
        groups.setdefault((device.name, device.compute_capability), []).append(device)
    return ", ".join(f"{names(group)} (compute capability {capability_text(key[1])})" for key, group in groups.items())


def device_ids(devices: Iterable[Device]) -> tuple[str, ...]:
    return tuple(f"cuda:{device.index}" for device in devices)


def computing(device: Device) -> tuple[Process, ...]:
    """The other programs on a card, except those that draw a desktop."""
    return tuple(process for process in device.processes or () if not DISPLAY.search(process.name or ""))


def _listed(device: Device, where: str) -> Card:
    return Card(name=device.name, capability=device.compute_capability, where=where, listed=True)


def _unlisted(hardware: Hardware) -> tuple[PciGpu, ...]:
    known = {pci_key(device.pci_bus_id) for device in (*hardware.devices, *hardware.hidden_devices)}
    return tuple(gpu for gpu in hardware.pci_gpus or () if pci_key(gpu.bus_id) not in known)


def _on_the_bus(gpu: PciGpu) -> Card:
    rows = [row for row in read_table("gpus")["gpus"] if gpu.device_id.lower() in row["pci_device_ids"]]
    known = find_gpu(rows[0]["id"]) if rows else None
    return Card(
        name=" or ".join(dict.fromkeys(row["nvml_names"][-1] for row in rows)) or f"NVIDIA card 10de:{gpu.device_id}",
        capability=capability_of(rows[0]["cc"]) if rows else None,
        where=f"PCI {gpu.bus_id}",
        listed=False,
        kernel_driver=gpu.kernel_driver,
        large_bar=known is not None and known.form == "datacenter",
    )
