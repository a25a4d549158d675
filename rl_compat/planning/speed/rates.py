"""How fast cards compute and how fast links between them move bytes, as far as it is known, with the source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

from rl_compat.capability.devices import emulated_on_cpu, on_cpu
from rl_compat.hardware.gpu.catalogue import capability_of, find_gpu, read_table
from rl_compat.hardware.types import Device, Hardware
from rl_compat.planning.types import DType

FLOPS_FRACTION = 0.4
"of a card's peak that matrix products of a whole step reach"
BANDWIDTH_FRACTION = 0.8
"of a card's memory bandwidth that reading all weights reaches"
PEAKS: dict[DType, tuple[str, ...]] = {
    "fp32": ("fp32_tflops",),
    "fp16": ("fp16_tensor_tflops", "fp16_vector_tflops"),
    "bf16": ("bf16_tflops",),
}
FULL_WIDTH = 16
"lanes of a card whose number is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRate:
    """What a card reaches in training and generation."""

    flops: float
    "operations per second in one dtype"
    memory_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What connects devices."""

    name: str
    bytes_per_second: float | None
    "that one device sends; None if unknown"
    source: str

    def seconds(self, num_bytes: float) -> float | None:
        return None if self.bytes_per_second is None else num_bytes / self.bytes_per_second

    def __str__(self) -> str:
        if self.bytes_per_second is None:
            return f"{self.name}, rate unknown"
        return f"{self.name}, {self.bytes_per_second / 1e9:.3g} GB/s ({self.source})"


UNKNOWN_NETWORK = LinkRate(name="network", bytes_per_second=None, source="")


def card_rate(hardware: Hardware, dtype: DType) -> CardRate | None:
    """The rate of the devices of a pool; None for a CPU and for a card or dtype that the catalogue does not know."""
    if on_cpu(hardware) or emulated_on_cpu(hardware):
        return None
    device = hardware.devices[0]
    gpu = find_gpu(device.name, device.memory_total_bytes)
    if gpu is None:
        return None
    row: dict[str, Any] = next(row for row in read_table("gpus")["gpus"] if row["id"] == gpu.id)
    peak = next((row[name] for name in PEAKS[dtype] if row.get(name)), None)
    if peak is None or not row.get("memory_bandwidth_gbs"):
        return None
    return CardRate(
        flops=peak * 1e12 * FLOPS_FRACTION,
        memory_bytes_per_second=row["memory_bandwidth_gbs"] * 1e9 * BANDWIDTH_FRACTION,
    )


def link_within(hardware: Hardware) -> LinkRate:
    """The slowest link between the devices of a pool on one node."""
    if on_cpu(hardware) or emulated_on_cpu(hardware):
        row = _table()["measured"]["cpu"]
        return LinkRate(name="gloo", bytes_per_second=row["bytes_per_second"], source=row["source"])
    return _slowest(hardware, list(combinations(hardware.devices, 2)))


def link_between(first: Hardware, second: Hardware) -> LinkRate:
    """The slowest link between devices of two pools on one node."""
    if any(on_cpu(side) or emulated_on_cpu(side) for side in (first, second)):
        return LinkRate(name="host memory", bytes_per_second=None, source="")
    return _slowest(first, [(one, other) for one in first.devices for other in second.devices])


def network_link(gigabits: float) -> LinkRate:
    """The network between nodes, of which a device gets all."""
    rate = gigabits / 8 * 1e9 * _table()["achieved_fraction"]
    return LinkRate(name="network", bytes_per_second=rate, source=f"{gigabits:g} Gbit/s given")


def slower(first: LinkRate, second: LinkRate) -> LinkRate:
    """The slower of two links; an unknown one counts as the slower."""
    return min(first, second, key=lambda link: link.bytes_per_second or 0.0)


def _slowest(hardware: Hardware, pairs: Sequence[tuple[Device, Device]]) -> LinkRate:
    """The slowest link of all pairs."""
    links = [_link(hardware, first, second) for first, second in pairs]
    return min(links, key=lambda link: link.bytes_per_second or 0.0)


def _link(hardware: Hardware, first: Device, second: Device) -> LinkRate:
    ends = {first.index, second.index}
    known = next((link for link in hardware.links if {link.first, link.second} == ends), None)
    if known is None or known.kind is None:
        return LinkRate(name="unknown link", bytes_per_second=None, source="")
    table, capability = _table(), min(first.compute_capability, second.compute_capability)
    if known.kind == "nvlink":
        nvlink = table["nvlink"]
        rate = nvlink["by_capability"].get(f"{capability[0]}.{capability[1]}")
        reached = None if rate is None else rate * table["achieved_fraction"]
        return LinkRate(name="NVLink", bytes_per_second=reached, source=nvlink["source"])
    lanes = min(device.pcie_width or device.pcie_width_max or FULL_WIDTH for device in (first, second))
    lane = next(rate for last, rate in table["pcie_lane"]["up_to_capability"] if capability <= capability_of(last))
    reached = lanes * lane * table["achieved_fraction"]
    if known.peer_access:
        return LinkRate(name=f"PCIe x{lanes}", bytes_per_second=reached, source="lanes")
    return LinkRate(
        name=f"PCIe x{lanes} through host memory", bytes_per_second=reached / 2, source="lanes, without peer access"
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(
        files("rl_compat.planning.speed").joinpath("link_rates.json").read_text(encoding="utf-8")
    )
    return table
