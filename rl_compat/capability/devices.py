"""Properties of a set of devices: names, capabilities, and whether the installed torch can use them."""

from __future__ import annotations

import re

from rl_compat.capability.binaries import TEGRA, wheel_supports
from rl_compat.hardware.types import Device, Hardware, TorchBuild
from rl_compat.units import GIB

UNIFIED = TEGRA | {(10, 1), (11, 0), (12, 1)}
"compute capabilities of integrated devices: Jetson, Thor, GB10"
UNIFIED_RESERVE_BYTES = 2 * GIB
"left to the system, at most a sixteenth of the memory"
NEEDS_CUDA = ("needs a CUDA device",)
_WITHOUT_TENSOR_CORES = re.compile(
    r"GTX 16\d\d|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b|Quadro T\d{3,4}", re.IGNORECASE
)
"cards of compute capability 7.5 without tensor cores (TU116 and TU117)"


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


def device_bytes(hardware: Hardware) -> int:
    """Total memory of the device, or of the host when the CPU computes."""
    return hardware.devices[0].memory_total_bytes if hardware.devices else hardware.host.ram_limit_bytes


def has_unified_memory(hardware: Hardware) -> bool:
    """Whether the devices compute in the host's memory, so that nothing can be offloaded from one to the other."""
    return on_cpu(hardware) or any(device.compute_capability in UNIFIED for device in hardware.devices)


def unified_free_bytes(hardware: Hardware) -> int:
    """What a device of unified memory may use: the smaller of what CUDA and the system have free, less a reserve."""
    host, device = hardware.host, hardware.devices[0]
    free = min(device.memory_free_bytes, host.ram_available_bytes, host.ram_limit_bytes)
    return max(0, free - min(UNIFIED_RESERVE_BYTES, device.memory_total_bytes // 16))


def emulated_on_cpu(hardware: Hardware) -> bool:
    """Whether the CPU emulates a card, because torch sees no GPU."""
    torch = hardware.software.torch
    return hardware.emulated is not None and bool(hardware.devices) and torch is not None and not torch.cuda_available


def torch_version(hardware: Hardware) -> str | None:
    """The version that a probe imported, or else the installed one."""
    software = hardware.software
    return software.torch.version if software.torch is not None else software.packages.get("torch")


def against_package(hardware: Hardware, name: str) -> tuple[str, ...]:
    """Why an optional package cannot be used: not installed, or installed and broken."""
    software = hardware.software
    version, error = software.packages.get(name), software.import_errors.get(name)
    if version is None:
        return (f"needs the package `{name}`, which is not installed",)
    return () if error is None else (f"the installed `{name}` {version} does not import: {error}",)


def against_torch(hardware: Hardware) -> tuple[str, ...]:
    """Why torch has no code for the selected devices or cannot reach them; nothing is against an emulated device."""
    torch = hardware.software.torch
    if on_cpu(hardware) or hardware.emulated is not None:
        return ()
    if torch is None:
        error = hardware.software.torch_error
        return (f"torch does not import: {error}",) if error else ()
    if torch.cuda is None:
        return (f"torch {torch.version} is a CPU build",)
    without_code = tuple(
        f"torch {torch.version} for CUDA {torch.cuda} has no code for {describe(device)}, compute capability "
        f"{capability_text(device)}: it has {', '.join(torch.arch_list)}"
        for device in hardware.devices
        if not torch_has_code(torch, device)
    )
    if without_code or torch.cuda_available:
        return without_code
    return (f"torch {torch.version} for CUDA {torch.cuda} cannot reach the driver",)


def torch_has_code(torch: TorchBuild, device: Device) -> bool:
    """Whether torch has code for a device. A build without a list of architectures is assumed to have it."""
    return not torch.arch_list or wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda)
