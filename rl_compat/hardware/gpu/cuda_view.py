"""How CUDA shows the GPUs that NVML lists: in which order, which of them, and which CUDA device is which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlSlice


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
    picked = select_visible([gpu], environment.get("CUDA_VISIBLE_DEVICES")).picked
    position = picked[0].slice_position if picked else None
    return gpu.slices[position or 0]


def _bare(name: str) -> str:
    return name.lower().removeprefix("nvidia ").strip()


def _bare_uuid(uuid: str | None) -> str | None:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-") if uuid else None


@dataclass(frozen=True, slots=True)
class Picked:
    """A GPU by position, or one MIG slice of it."""

    position: int
    slice_position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    picked: tuple[Picked, ...]
    warnings: tuple[str, ...] = ()


def select_visible(gpus: Sequence[NvmlDevice], value: str | None) -> Selection:
    """Which of the GPUs, in CUDA's unrestricted order, `CUDA_VISIBLE_DEVICES=value` shows; None is unset.

    Entries are positions, whole UUIDs or unique beginnings of a UUID (`GPU-…` or `MIG-…`). The first entry that
    matches nothing ends the list, and a repeated entry empties it. A process sees at most one MIG slice, and then no
    whole GPU. Source: CUDA programming guide, environment variables, and NVIDIA's MIG user guide.
    """
    if value is None:
        return _apply_mig(gpus, [Picked(position) for position in range(len(gpus))], ())
    picked: list[Picked] = []
    warnings: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        match = resolve_entry(gpus, entry)
        if isinstance(match, str):
            if entry and not re.match(r"-[0-9]", entry):
                warnings.append(f"CUDA_VISIBLE_DEVICES: `{entry}` {match}; it and what follows is ignored")
            break
        if match in picked:
            return Selection(picked=(), warnings=(f"CUDA_VISIBLE_DEVICES names `{entry}` twice: CUDA shows no device",))
        picked.append(match)
    return _apply_mig(gpus, picked, tuple(warnings))


def resolve_entry(gpus: Sequence[NvmlDevice], entry: str) -> Picked | str:
    """The device of one entry of CUDA_VISIBLE_DEVICES, or why the entry is invalid."""
    number = re.match(r"[+-]?[0-9]+", entry)
    if number is not None:
        position = int(number.group())
        return Picked(position) if 0 <= position < len(gpus) else f"is not among the {len(gpus)} GPUs"
    found = [picked for uuid, picked in _named(gpus) if len(entry) > 4 and uuid.lower().startswith(entry.lower())]
    exact = [picked for uuid, picked in _named(gpus) if uuid.lower() == entry.lower()]
    if exact or len(found) == 1:
        return (exact or found)[0]
    return "matches several devices" if found else "matches no device"


def _named(gpus: Sequence[NvmlDevice]) -> list[tuple[str, Picked]]:
    whole = [(gpu.uuid, Picked(position)) for position, gpu in enumerate(gpus) if gpu.uuid]
    parts = [
        (part.uuid, Picked(position, slice_position))
        for position, gpu in enumerate(gpus)
        for slice_position, part in enumerate(gpu.slices)
    ]
    return [*whole, *parts]


def _apply_mig(gpus: Sequence[NvmlDevice], picked: list[Picked], warnings: tuple[str, ...]) -> Selection:
    """Replace GPUs in MIG mode with their first slice; if there is any slice, keep only one."""
    found: list[Picked] = []
    for choice in picked:
        gpu = gpus[choice.position]
        if choice.slice_position is None and gpu.mig_enabled:
            if gpu.slices:
                found.append(Picked(choice.position, 0))
            else:
                warnings += (f"GPU {choice.position} is in MIG mode and has no slice: CUDA cannot use it",)
        else:
            found.append(choice)
    slices = [choice for choice in found if choice.slice_position is not None]
    if slices and len(found) > 1:
        warnings += ("a process sees at most one MIG slice: the other devices are not visible",)
    return Selection(picked=tuple(slices[:1] or found), warnings=warnings)
