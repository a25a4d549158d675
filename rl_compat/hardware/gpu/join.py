"""One list of devices and links from NVML and CUDA, joined by UUID, then PCI id, then an unambiguous name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

from rl_compat.hardware.gpu.catalogue import find_gpu, shared_memory_optin_bytes
from rl_compat.hardware.gpu.cuda_view import NvmlMatch, cuda_order, match_devices, select_visible
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlReading, TorchReading
from rl_compat.hardware.types import Device, Hardware, Link

CUDA_FACTS = [field.name for field in fields(CudaDevice) if field.name not in ("index", "uuid")]
BOARD_FACTS = (
    "pci_bus_id",
    "processes",
    "compute_mode",
    "pcie_width",
    "pcie_width_max",
    "bar1_total_bytes",
    "memory_health",
)


OTHER_VENDORS = ("AMD ", "Radeon", "Intel")


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


def set_apart_other_vendors(hardware: Hardware) -> Hardware:
    """With the GPUs that a ROCm build of torch shows under CUDA's names in `other_gpus`."""
    torch = hardware.software.torch
    rocm = torch is not None and "rocm" in torch.version and torch.cuda_available
    others = [device for device in hardware.devices if rocm or device.name.startswith(OTHER_VENDORS)]
    if torch is None or not others:
        return hardware
    devices = tuple(device for device in hardware.devices if device not in others)
    names = tuple(dict.fromkeys((*(device.name for device in others), *hardware.other_gpus)))
    software = replace(hardware.software, torch=replace(torch, cuda_available=bool(devices)))
    return replace(hardware, devices=devices, links=(), other_gpus=names, software=software)


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
    selection = select_visible(ordered, environment.get("CUDA_VISIBLE_DEVICES"))
    warnings = list(selection.warnings)
    if not order_known:
        warnings.append("the order of the GPUs could not be read from CUDA: the fastest is assumed to be first")
    devices: list[Device] = []
    for choice in selection.picked:
        gpu = ordered[choice.position]
        part = gpu.slices[choice.slice_position] if choice.slice_position is not None else None
        device = _from_match(NvmlMatch(gpu, part), index=len(devices), source=source)
        if device is None:
            warnings.append(f"`{gpu.name}` is left out: its capability or memory is not known")
        else:
            devices.append(device)
    seen = {ordered[choice.position].index for choice in selection.picked}
    hidden = tuple(device for gpu in nvml if gpu.index not in seen if (device := _hidden(gpu, source)))
    return JoinedDevices(devices=tuple(devices), hidden=hidden, warnings=(*warnings, *_order_warning(tuple(devices))))


def _merged(cuda: CudaDevice, match: NvmlMatch | None, source: str) -> Device:
    """CUDA's facts, with the identity and free memory from NVML (CUDA's excludes the probe's own context)."""
    facts = _Facts()
    if match is not None:
        gpu, known = match.device, match.slice or match.device
        free = None if gpu.mig_enabled else gpu.memory_free_bytes
        facts.take(
            source,
            memory_free_bytes=None if free is None else min(free, cuda.memory_total_bytes),
            uuid=known.uuid,
            nvml_memory_total_bytes=_disagreeing(known.memory_total_bytes, cuda.memory_total_bytes),
            **_of_board(match),
        )
    facts.take("cuda", **{name: getattr(cuda, name) for name in CUDA_FACTS})
    facts.take("cuda", uuid=f"GPU-{cuda.uuid.removeprefix('GPU-')}" if cuda.uuid else None)
    return facts.device(index=cuda.index)


def _disagreeing(total: int | None, cuda_bytes: int) -> int | None:
    """NVML's total if it differs from CUDA's by more than a tenth: one of the two is of another card."""
    return total if total is not None and abs(total - cuda_bytes) * 10 > cuda_bytes else None


def _from_match(match: NvmlMatch, *, index: int, source: str) -> Device | None:
    """A device from NVML and the catalogue; None without a capability or a memory size."""
    gpu, part = match.device, match.slice
    known, row = part or gpu, find_gpu(gpu.name, gpu.memory_total_bytes)
    facts = _Facts()
    facts.take(
        source,
        name=gpu.name if part is None else f"{gpu.name} MIG {part.profile or 'slice'}",
        compute_capability=gpu.compute_capability,
        memory_total_bytes=known.memory_total_bytes,
        memory_free_bytes=known.memory_free_bytes,
        num_multiprocessors=part.num_multiprocessors if part else None,
        uuid=known.uuid,
        **_of_board(match),
    )
    if row is not None:
        facts.take("catalogue", compute_capability=row.compute_capability)
    if row is not None and part is None:
        facts.take("catalogue", memory_total_bytes=row.memory_bytes, num_multiprocessors=row.num_multiprocessors)
    complete = {"compute_capability", "memory_total_bytes"} <= facts.values.keys()
    return facts.device(index=index) if complete else None


def _of_board(match: NvmlMatch) -> dict[str, Any]:
    """NVML's facts of the whole board, which also hold for its slices, and what the slices are."""
    gpu, part = match.device, match.slice
    return {name: getattr(gpu, name) for name in BOARD_FACTS} | {
        "nvml_index": gpu.index,
        "mig_profile": part.profile if part else None,
        "mig_slices": len(gpu.slices) if gpu.mig_enabled else None,
    }


def _hidden(gpu: NvmlDevice, source: str) -> Device | None:
    return _from_match(NvmlMatch(gpu), index=gpu.index, source=source)


def join_links(
    devices: Sequence[Device], links: Sequence[Link], peer_access: Mapping[tuple[int, int], bool]
) -> tuple[Link, ...]:
    """The known links between visible devices, by CUDA index.

    `peer_access` says for an ordered pair whether the first can read the second's memory; a link needs both directions.
    """
    kinds = {frozenset((link.first, link.second)): link.kind for link in links}
    joined = []
    for first, second in combinations(devices, 2):
        kind = kinds.get(frozenset((first.nvml_index, second.nvml_index)))  # type: ignore[arg-type]
        ways = [peer_access.get(pair) for pair in ((first.index, second.index), (second.index, first.index))]
        access = None if None in ways else all(ways)
        if kind is not None or access is not None:
            joined.append(Link(first=first.index, second=second.index, kind=kind, peer_access=access))
    return tuple(joined)


class _Facts:
    """Field values with their source; the first source that has a field wins."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def take(self, source: str, **facts: Any) -> None:
        for name, value in facts.items():
            if value is not None and name not in self.values:
                self.values[name] = value
                self.sources[name] = source

    def device(self, *, index: int) -> Device:
        """The device. What no source says follows from the memory and the compute capability."""
        capability = self.values["compute_capability"]
        self.take(
            "rule",
            memory_free_bytes=self.values["memory_total_bytes"],
            shared_memory_optin_bytes=shared_memory_optin_bytes(capability),
            bf16_native=capability >= (8, 0),
        )
        return Device(index=index, sources=dict(self.sources), **self.values)


def _order_warning(devices: tuple[Device, ...]) -> tuple[str, ...]:
    order = [device.nvml_index for device in devices if device.nvml_index is not None]
    if order == sorted(order):
        return ()
    pairs = ", ".join(f"cuda:{device.index} is {device.nvml_index}" for device in devices)
    return (f"nvidia-smi numbers the GPUs differently: {pairs} there",)
