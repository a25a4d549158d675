"""Matches CUDA devices with NVML devices, and derives how CUDA would number the devices that NVML lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlSlice
from rl_compat.hardware.gpu.visible import Candidate, select_visible


@dataclass(frozen=True, slots=True)
class NvmlMatch:
    """The NVML device of a CUDA device, and the slice if it is one."""

    device: NvmlDevice
    slice: NvmlSlice | None = None


def match_devices(
    nvml: Sequence[NvmlDevice], cuda: Sequence[CudaDevice], environment: Mapping[str, str]
) -> list[NvmlMatch | None]:
    """The NVML device of each CUDA device; None if nothing identifies it."""
    matches = [_by_uuid(nvml, device, environment) or _by_pci(nvml, device) for device in cuda]
    for position, device in enumerate(cuda):
        if matches[position] is None:
            taken = {match.device.index for match in matches if match}
            same = [gpu for gpu in nvml if _bare(gpu.name) == _bare(device.name) and gpu.index not in taken]
            same_cuda = [other for other in cuda if other.name == device.name]
            if len(same) == 1 and len(same_cuda) == 1:
                matches[position] = NvmlMatch(same[0], _only_slice(same[0], environment))
    return matches


def cuda_order(nvml: Sequence[NvmlDevice], environment: Mapping[str, str]) -> tuple[list[NvmlDevice], bool]:
    """NVML's devices in the order in which CUDA would number them, and whether this is certain."""
    by_bus = sorted(nvml, key=lambda gpu: pci_key(gpu.pci_bus_id) or f"~{gpu.index:04d}")
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in nvml}) <= 1:
        return by_bus, True

    def speed(gpu: NvmlDevice) -> float:
        row = find_gpu(gpu.name, gpu.memory_total_bytes)
        return (row.fp32_tflops if row else None) or 0.0

    return sorted(by_bus, key=speed, reverse=True), False


def pci_key(pci_bus_id: str | None) -> str | None:
    """`0000:01:00.0` and `00000000:01:00.0` in one spelling."""
    if pci_bus_id is None:
        return None
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{int(domain, 16):08x}:{rest}"


def _by_uuid(nvml: Sequence[NvmlDevice], device: CudaDevice, environment: Mapping[str, str]) -> NvmlMatch | None:
    wanted = _bare_uuid(device.uuid)
    if wanted is None:
        return None
    for gpu in nvml:
        for part in gpu.slices:
            if _bare_uuid(part.uuid) == wanted:
                return NvmlMatch(gpu, part)
        if _bare_uuid(gpu.uuid) == wanted:
            return NvmlMatch(gpu, _only_slice(gpu, environment))
    return None


def _by_pci(nvml: Sequence[NvmlDevice], device: CudaDevice) -> NvmlMatch | None:
    wanted = pci_key(device.pci_bus_id)
    found = [gpu for gpu in nvml if wanted is not None and pci_key(gpu.pci_bus_id) == wanted]
    return NvmlMatch(found[0], _only_slice(found[0], {})) if len(found) == 1 else None


def _only_slice(gpu: NvmlDevice, environment: Mapping[str, str]) -> NvmlSlice | None:
    """The slice that CUDA shows under the name of its parent GPU."""
    if not gpu.mig_enabled or not gpu.slices:
        return None
    candidate = Candidate(uuid=gpu.uuid, slices=tuple(part.uuid for part in gpu.slices), mig_enabled=True)
    picked = select_visible([candidate], environment.get("CUDA_VISIBLE_DEVICES")).picked
    position = picked[0].slice_position if picked else None
    return gpu.slices[position or 0]


def _bare(name: str) -> str:
    return name.lower().removeprefix("nvidia ").strip()


def _bare_uuid(uuid: str | None) -> str | None:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-") if uuid else None
