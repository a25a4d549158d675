"""One list of devices from NVML and CUDA, joined by UUID, then PCI id, then an unambiguous name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_compat.hardware.gpu.catalogue import find_gpu, shared_memory_optin_bytes
from rl_compat.hardware.gpu.matching import NvmlMatch, cuda_order, match_devices
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlReading, NvmlSlice, TorchReading
from rl_compat.hardware.gpu.visible import Candidate, Picked, select_visible
from rl_compat.hardware.types import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedDevices:
    devices: tuple[Device, ...]
    hidden: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()


def join(nvml: NvmlReading, torch: TorchReading, environment: Mapping[str, str]) -> JoinedDevices:
    """Visible devices in CUDA's order, hidden devices in NVML's order, and contradictions as warnings."""
    if torch.devices:
        return _from_cuda(nvml, torch.devices, environment)
    return _from_nvml(nvml, environment)


def _from_cuda(reading: NvmlReading, cuda: Sequence[CudaDevice], environment: Mapping[str, str]) -> JoinedDevices:
    nvml, source = reading.devices, reading.source
    matches = match_devices(nvml, cuda, environment)
    devices = tuple(_merged(device, match, source) for device, match in zip(cuda, matches, strict=True))
    seen = {match.device.index for match in matches if match}
    hidden = tuple(device for unseen in nvml if unseen.index not in seen if (device := _hidden(unseen, source)))
    warnings = [
        f"cuda:{device.index} (`{device.name}`) could not be found in NVML"
        for device, match in zip(cuda, matches, strict=True)
        if nvml and match is None
    ]
    if hidden and "CUDA_VISIBLE_DEVICES" not in environment:
        names = ", ".join(f"`{device.name}`" for device in hidden)
        warnings.append(f"NVML lists {names}, which CUDA does not show although CUDA_VISIBLE_DEVICES is not set")
    return JoinedDevices(devices=devices, hidden=hidden, warnings=(*warnings, *_order_warning(devices)))


def _from_nvml(reading: NvmlReading, environment: Mapping[str, str]) -> JoinedDevices:
    """The devices that CUDA would show, derived from NVML alone."""
    nvml, source = reading.devices, reading.source
    ordered, order_known = cuda_order(nvml, environment)
    candidates = [
        Candidate(uuid=gpu.uuid, slices=tuple(part.uuid for part in gpu.slices), mig_enabled=gpu.mig_enabled)
        for gpu in ordered
    ]
    selection = select_visible(candidates, environment.get("CUDA_VISIBLE_DEVICES"))
    warnings = list(selection.warnings)
    if not order_known:
        warnings.append("the order of the GPUs could not be read from CUDA: the fastest is assumed to be first")
    devices: list[Device] = []
    for choice in selection.picked:
        device = _from_match(_match_of(ordered, choice), index=len(devices), source=source)
        if device is None:
            warnings.append(f"`{ordered[choice.position].name}` is left out: its capability or memory is not known")
        else:
            devices.append(device)
    seen = {ordered[choice.position].index for choice in selection.picked}
    hidden = tuple(device for gpu in nvml if gpu.index not in seen if (device := _hidden(gpu, source)))
    return JoinedDevices(devices=tuple(devices), hidden=hidden, warnings=(*warnings, *_order_warning(tuple(devices))))


def _match_of(ordered: Sequence[NvmlDevice], choice: Picked) -> NvmlMatch:
    gpu = ordered[choice.position]
    return NvmlMatch(gpu, gpu.slices[choice.slice_position] if choice.slice_position is not None else None)


def _merged(cuda: CudaDevice, match: NvmlMatch | None, source: str) -> Device:
    """CUDA's facts, with the identity and free memory from NVML (CUDA's excludes the probe's own context)."""
    gpu, part = (match.device, match.slice) if match else (None, None)
    facts = _Facts()
    facts.take("cuda", "name", cuda.name)
    facts.take("cuda", "compute_capability", cuda.compute_capability)
    facts.take("cuda", "memory_total_bytes", cuda.memory_total_bytes)
    if gpu and not gpu.mig_enabled and gpu.memory_free_bytes is not None:
        facts.take(source, "memory_free_bytes", min(gpu.memory_free_bytes, cuda.memory_total_bytes))
    facts.take("cuda", "memory_free_bytes", cuda.memory_free_bytes)
    facts.take("rule", "memory_free_bytes", cuda.memory_total_bytes)
    facts.take(source, "uuid", part.uuid if part else gpu.uuid if gpu else None)
    facts.take("cuda", "uuid", f"GPU-{cuda.uuid.removeprefix('GPU-')}" if cuda.uuid else None)
    facts.take(source, "pci_bus_id", gpu.pci_bus_id if gpu else None)
    facts.take("cuda", "pci_bus_id", cuda.pci_bus_id)
    facts.take(source, "nvml_index", gpu.index if gpu else None)
    facts.take("cuda", "num_multiprocessors", cuda.num_multiprocessors)
    facts.take("cuda", "shared_memory_optin_bytes", cuda.shared_memory_optin_bytes)
    facts.take("rule", "shared_memory_optin_bytes", shared_memory_optin_bytes(cuda.compute_capability))
    facts.take(source, "mig_profile", part.profile if part else None)
    facts.take(source, "mig_slices", len(gpu.slices) if gpu and gpu.mig_enabled else None)
    facts.take(source, "nvml_memory_total_bytes", _disagreeing(part or gpu, cuda.memory_total_bytes))
    facts.take("cuda", "bf16_native", cuda.bf16_native)
    facts.take("rule", "bf16_native", cuda.compute_capability >= (8, 0))
    if gpu:
        _take_board(facts, gpu, source)
    return facts.device(index=cuda.index)


def _disagreeing(nvml: NvmlDevice | NvmlSlice | None, cuda_bytes: int) -> int | None:
    """NVML's total if it differs from CUDA's by more than a tenth: one of the two is of another card."""
    total = nvml.memory_total_bytes if nvml else None
    return total if total is not None and abs(total - cuda_bytes) * 10 > cuda_bytes else None


def _from_match(match: NvmlMatch, *, index: int, source: str) -> Device | None:
    """A device from NVML and the catalogue; None without a capability or a memory size."""
    gpu, part = match.device, match.slice
    row = find_gpu(gpu.name, gpu.memory_total_bytes)
    facts = _Facts()
    facts.take(source, "name", gpu.name if part is None else f"{gpu.name} MIG {part.profile or 'slice'}")
    facts.take(source, "compute_capability", gpu.compute_capability)
    facts.take("catalogue", "compute_capability", row.compute_capability if row else None)
    facts.take(source, "memory_total_bytes", (part or gpu).memory_total_bytes)
    facts.take(source, "memory_free_bytes", (part or gpu).memory_free_bytes)
    if part is None:
        facts.take("catalogue", "memory_total_bytes", row.memory_bytes if row else None)
        facts.take("catalogue", "num_multiprocessors", row.num_multiprocessors if row else None)
    else:
        facts.take(source, "num_multiprocessors", part.num_multiprocessors)
        facts.take(source, "mig_profile", part.profile)
    facts.take("rule", "memory_free_bytes", facts.values.get("memory_total_bytes"))
    facts.take(source, "uuid", (part or gpu).uuid)
    facts.take(source, "pci_bus_id", gpu.pci_bus_id)
    facts.take(source, "nvml_index", gpu.index)
    _take_board(facts, gpu, source)
    facts.take(source, "mig_slices", len(gpu.slices) if gpu.mig_enabled else None)
    capability = facts.values.get("compute_capability")
    if capability is None or facts.values.get("memory_total_bytes") is None:
        return None
    facts.take("rule", "shared_memory_optin_bytes", shared_memory_optin_bytes(capability))
    facts.take("rule", "bf16_native", capability >= (8, 0))
    return facts.device(index=index)


def _take_board(facts: _Facts, gpu: NvmlDevice, source: str) -> None:
    """Facts of the whole board, which also hold for its slices."""
    facts.take(source, "processes", gpu.processes)
    facts.take(source, "compute_mode", gpu.compute_mode)
    facts.take(source, "pcie_width", gpu.pcie_width)
    facts.take(source, "pcie_width_max", gpu.pcie_width_max)
    facts.take(source, "bar1_total_bytes", gpu.bar1_total_bytes)


def _hidden(gpu: NvmlDevice, source: str) -> Device | None:
    return _from_match(NvmlMatch(gpu), index=gpu.index, source=source)


class _Facts:
    """Field values with their source; the first source that has a field wins."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def take(self, source: str, name: str, value: Any) -> None:
        if value is not None and name not in self.values:
            self.values[name] = value
            self.sources[name] = source

    def device(self, *, index: int) -> Device:
        return Device(index=index, sources=dict(self.sources), **self.values)


def _order_warning(devices: tuple[Device, ...]) -> tuple[str, ...]:
    order = [device.nvml_index for device in devices if device.nvml_index is not None]
    if order == sorted(order):
        return ()
    pairs = ", ".join(f"cuda:{device.index} is {device.nvml_index}" for device in devices)
    return (f"nvidia-smi numbers the GPUs differently: {pairs} there",)
