"""Whether CUDA and nvidia-smi mean the same card by the same number."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Device, Hardware

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def check_device_order(hardware: Hardware) -> Iterator[Finding]:
    """Nothing where one card is all there is, or nvidia-smi's numbers are not known."""
    devices, value = hardware.devices, hardware.environment.get(VISIBLE)
    several = len(devices) + len(hardware.hidden_devices) > 1
    if hardware.emulated is not None or not several or any(device.nvml_index is None for device in devices):
        return
    if not devices:
        return
    other = _misnumbered(devices, value) if value is not None else None
    indexes = [device.nvml_index for device in devices if device.nvml_index is not None]
    if other is not None:
        yield _another_card(value or "", *other)
    elif value is None and indexes != sorted(indexes):
        yield _differs(hardware)
    else:
        yield Finding(
            id="device_order.agrees",
            severity=Severity.OK,
            what="CUDA and nvidia-smi agree on the cards: "
            + ", ".join(f"cuda:{device.index} is {device.nvml_index} there" for device in devices),
            where=("cuda", "nvml"),
        )


def _misnumbered(devices: tuple[Device, ...], value: str) -> tuple[int, Device] | None:
    """The first number in CUDA_VISIBLE_DEVICES that is another card for nvidia-smi."""
    for entry, device in zip(value.split(","), devices, strict=False):
        number = entry.strip()
        if number.isdecimal() and int(number) != device.nvml_index:
            return int(number), device
    return None


def _another_card(value: str, number: int, device: Device) -> Finding:
    by_name = shell("name the card itself, which no order changes", f"export {VISIBLE}={device.uuid}")
    return Finding(
        id="device_order.another_card",
        severity=Severity.WARNING,
        what=f"{VISIBLE}=`{value}`: CUDA's {number} is `{device.name}`, which nvidia-smi numbers {device.nvml_index}",
        why="CUDA counts the fastest card first and nvidia-smi by place on the bus: training may run on another card "
        "than the one that was meant",
        where=(VISIBLE, "cuda", "nvml"),
        affects=(f"cuda:{device.index}", "training"),
        remedies=(_by_bus(), by_name) if device.uuid else (_by_bus(),),
    )


def _differs(hardware: Hardware) -> Finding:
    numbers = ",".join(str(device.nvml_index) for device in hardware.devices)
    pairs = ", ".join(f"cuda:{gpu.index} `{gpu.name}` is {gpu.nvml_index} there" for gpu in hardware.devices)
    return Finding(
        id="device_order.differs",
        severity=Severity.WARNING,
        what=f"nvidia-smi numbers the cards otherwise than CUDA: {pairs}",
        why="what is chosen or watched by a number of nvidia-smi is another card; a run on one card takes cuda:0",
        where=("cuda", "nvml"),
        affects=tuple(f"cuda:{device.index}" for device in hardware.devices),
        remedies=(_by_bus(f"export {VISIBLE}={numbers}"),),
    )


def _by_bus(*commands: str) -> Remedy:
    kept = "; the cards keep the places that they have now" if commands else ""
    return shell(f"let CUDA count as nvidia-smi does{kept}", f"export {ORDER}=PCI_BUS_ID", *commands)


CHECKS: tuple[Check, ...] = (
    Check(id="device_order", question="do CUDA and nvidia-smi number the cards alike?", run=check_device_order),
)
