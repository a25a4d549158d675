"""Properties of a set of devices: names, capabilities, and whether the installed torch can use them."""

from __future__ import annotations

import re
from dataclasses import replace

from rl_compat.capability.binaries import wheel_supports
from rl_compat.capability.choice import Capability, capability
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Device, Hardware, TorchBuild

_WITHOUT_TENSOR_CORES = re.compile(
    r"GTX 16\d\d|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b|Quadro T\d{3,4}", re.IGNORECASE
)
"cards of compute capability 7.5 without tensor cores (TU116 and TU117)"


def select_devices(hardware: Hardware, num_devices: int) -> Hardware:
    """The hardware with only its first `num_devices` visible devices; 0 leaves the CPU.

    Raises HardwareError if fewer are visible.
    """
    visible = len(hardware.devices)
    if num_devices > visible:
        hidden = len(hardware.hidden_devices)
        aside = f" and {hidden} hidden by `CUDA_VISIBLE_DEVICES`" if hidden else ""
        raise HardwareError(
            f"devices requested: {num_devices}, visible: {visible}{aside}",
            hint=f"set `plan.num_devices={visible}`" if visible else "set `plan.device=cpu` and `plan.num_devices=1`",
        )
    return replace(hardware, devices=hardware.devices[:num_devices])


def describe(device: Device) -> str:
    return f"device {device.index} ({device.name})"


def below(hardware: Hardware, minimum: tuple[int, int]) -> tuple[str, ...]:
    """A reason for each device whose compute capability is below the minimum."""
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
    """Whether the CPU emulates a card, because torch sees no GPU."""
    torch = hardware.software.torch
    return hardware.emulated is not None and bool(hardware.devices) and torch is not None and not torch.cuda_available


def torch_version(hardware: Hardware) -> str | None:
    """The version that a probe imported, or else the installed one."""
    software = hardware.software
    return software.torch.version if software.torch is not None else software.packages.get("torch")


def torch_build(hardware: Hardware) -> Capability:
    """Whether torch has code for every selected device and can reach it; always for an emulated device."""
    torch = hardware.software.torch
    if on_cpu(hardware) or hardware.emulated is not None:
        return capability("torch")
    if torch is None:
        error = hardware.software.torch_error
        return capability("torch", (f"torch does not import: {error}",) if error else ())
    if torch.cuda is None:
        return capability("torch", (f"torch {torch.version} is a CPU build",))
    without_code = tuple(
        f"torch {torch.version} for CUDA {torch.cuda} has no code for {describe(device)}, compute capability "
        f"{capability_text(device)}: it has {', '.join(torch.arch_list)}"
        for device in hardware.devices
        if not torch_has_code(torch, device)
    )
    unreachable = (f"torch {torch.version} for CUDA {torch.cuda} cannot reach the driver",)
    return capability("torch", without_code, () if torch.cuda_available or without_code else unreachable)


def torch_has_code(torch: TorchBuild, device: Device) -> bool:
    """Whether torch has code for a device. A build without a list of architectures is assumed to have it."""
    return not torch.arch_list or wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda)
