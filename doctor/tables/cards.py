"""Every NVIDIA card of a machine, whether CUDA shows it, the driver lists it or only the PCI bus knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rl_compat.doctor.tables.torch import read_knowledge
from rl_compat.hardware.gpu.catalogue import capability_of, find_gpu
from rl_compat.hardware.gpu.matching import pci_key
from rl_compat.hardware.types import Device, Hardware, PciGpu, Process

Capability = tuple[int, int]
DISPLAY = re.compile(r"\b(Xorg|Xwayland|X|gnome-shell|kwin\w*|plasmashell|mutter|sway|weston|Hyprland|sddm|gdm)\b")
"programs that draw a desktop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card, by the best name that is known for it."""

    name: str
    capability: Capability | None
    where: str
    "`cuda:0`, `nvidia-smi 1` or `PCI 0000:03:00.0`"
    listed: bool
    "CUDA or NVML lists it"
    kernel_driver: str | None = None
    "of a card that only the bus knows"
    large_bar: bool = False
    "a data-centre card, which wants gigabytes of address space above 4 GiB"


def all_cards(hardware: Hardware) -> tuple[Card, ...]:
    """Visible cards first, then hidden ones, then those that only the PCI bus knows. Of an emulated card, none."""
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


def computing(device: Device) -> tuple[Process, ...]:
    """The other programs on a card, without those that draw a desktop."""
    return tuple(process for process in device.processes or () if not DISPLAY.search(process.name or ""))


def capability_text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _listed(device: Device, where: str) -> Card:
    return Card(name=device.name, capability=device.compute_capability, where=where, listed=True)


def _unlisted(hardware: Hardware) -> tuple[PciGpu, ...]:
    known = {pci_key(device.pci_bus_id) for device in (*hardware.devices, *hardware.hidden_devices)}
    return tuple(gpu for gpu in hardware.pci_gpus or () if pci_key(gpu.bus_id) not in known)


def _on_the_bus(gpu: PciGpu) -> Card:
    rows = [row for row in read_knowledge("gpus")["gpus"] if gpu.device_id.lower() in row["pci_device_ids"]]
    known = find_gpu(rows[0]["id"]) if rows else None
    return Card(
        name=" or ".join(dict.fromkeys(row["nvml_names"][-1] for row in rows)) or f"NVIDIA card 10de:{gpu.device_id}",
        capability=capability_of(rows[0]["cc"]) if rows else None,
        where=f"PCI {gpu.bus_id}",
        listed=False,
        kernel_driver=gpu.kernel_driver,
        large_bar=known is not None and known.form == "datacenter",
    )
