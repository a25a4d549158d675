"""The way from the host into a card's memory: PCIe lanes and the window of addresses (BAR1)."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step
from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes


def check_pcie(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for cards that are connected as they can be."""
    for device in hardware.devices:
        yield from _lanes(hardware, device)
        yield from _window(hardware, device)


def _lanes(hardware: Hardware, device: Device) -> Iterator[Finding]:
    width, full = device.pcie_width, device.pcie_width_max
    if not width or not full or width * 2 >= full:
        return
    several = len(hardware.devices) > 1
    yield Finding(
        id="device_memory.pcie_lanes",
        severity=Severity.WARNING if several else Severity.NOTE,
        what=f"cuda:{device.index} `{device.name}` is connected by {width} of {full} PCIe lanes",
        why="gradients between cards, and weights or optimizer states that wait in host memory, take that many times "
        "longer; what stays on the card is not slowed",
        where=("nvml",),
        affects=(f"cuda:{device.index}", "offload", *(("several GPUs",) if several else ())),
        remedies=(
            Remedy(what="move the card to a slot with all lanes, without a riser of one lane", step=Step.SYSTEM),
        ),
    )


def _window(hardware: Hardware, device: Device) -> Iterator[Finding]:
    window, gpu = device.bar1_total_bytes, find_gpu(device.name, device.memory_total_bytes)
    if window is None or gpu is None or gpu.form != "datacenter" or device.mig_profile is not None:
        return
    if window >= device.memory_total_bytes or len(hardware.devices) < 2:
        return
    yield Finding(
        id="device_memory.bar1",
        severity=Severity.NOTE,
        what=f"cuda:{device.index} `{device.name}` shows {format_bytes(window)} of its "
        f"{format_bytes(device.memory_total_bytes)} on the PCIe bus (BAR1)",
        why="other cards reach only that part directly; the rest goes through host memory",
        where=("nvml",),
        affects=(f"cuda:{device.index}", "several GPUs"),
        remedies=(
            Remedy(
                what="switch on `Above 4G decoding` and `Resizable BAR` in the firmware's setup, and switch off its "
                "compatibility mode (CSM)",
                step=Step.SYSTEM,
            ),
        ),
    )
