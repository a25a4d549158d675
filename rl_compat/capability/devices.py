"""Questions about a set of devices that several rules ask."""

from __future__ import annotations

import re
from dataclasses import replace

from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Device, Hardware

_WITHOUT_TENSOR_CORES = re.compile(
    r"GTX 16\d\d|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b|Quadro T\d{3,4}", re.IGNORECASE
)
"cards of compute capability 7.5 made without tensor cores (TU116 and TU117)"


def select_devices(hardware: Hardware, num_devices: int) -> Hardware:
    """The hardware with only its first `num_devices` visible devices; 0 leaves the CPU.

    Raises HardwareError when fewer are visible.
    """
    visible = len(hardware.devices)
    if num_devices > visible:
        hidden = len(hardware.hidden_devices)
        aside = f" and {hidden} hidden by `CUDA_VISIBLE_DEVICES`" if hidden else ""
        raise HardwareError(
            f"devices asked for: {num_devices}, visible: {visible}{aside}",
            hint=f"set `plan.num_devices={visible}`" if visible else "set `plan.device=cpu` and `plan.num_devices=1`",
        )
    return replace(hardware, devices=hardware.devices[:num_devices])


def describe(device: Device) -> str:
    return f"device {device.index} ({device.name})"


def below(hardware: Hardware, minimum: tuple[int, int]) -> tuple[str, ...]:
    """A reason for each device whose compute capability is below the minimum. The weakest device decides."""
    return tuple(
        f"needs compute capability {minimum[0]}.{minimum[1]}, {describe(device)} has {capability_text(device)}"
        for device in hardware.devices
        if device.compute_capability < minimum
    )


def capability_text(device: Device) -> str:
    return f"{device.compute_capability[0]}.{device.compute_capability[1]}"


def has_tensor_cores(device: Device) -> bool:
    """Whether half-precision products run on tensor cores: from 7.0, except the GTX 16 family."""
    return device.compute_capability >= (7, 0) and _WITHOUT_TENSOR_CORES.search(device.name) is None


def on_cpu(hardware: Hardware) -> bool:
    return not hardware.devices


def emulated_on_cpu(hardware: Hardware) -> bool:
    """Whether the device is a card that the CPU pretends to be, because torch reaches no GPU."""
    torch = hardware.software.torch
    return hardware.emulated is not None and bool(hardware.devices) and torch is not None and not torch.cuda_available


def torch_version(hardware: Hardware) -> str | None:
    """The torch that will run: what a probe imported, else what is installed."""
    software = hardware.software
    return software.torch.version if software.torch is not None else software.packages.get("torch")
