"""Whether the torch that is installed can use the devices at all."""

from __future__ import annotations

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import capability_text, describe, on_cpu
from rl_compat.capability.types import Capability
from rl_compat.hardware.gpu.binaries import wheel_supports
from rl_compat.hardware.types import Device, Hardware, TorchBuild


def torch_build(hardware: Hardware) -> Capability:
    """Whether torch has code for every selected device and can reach it. An emulated device is not asked."""
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
    """Whether torch has code for a device; a build that names no architectures is taken to have it."""
    return not torch.arch_list or wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda)
