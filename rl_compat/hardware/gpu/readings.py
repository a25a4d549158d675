"""The readings of each source, before they are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_compat.hardware.types import Driver, Link, MemoryHealth, Process, TorchBuild


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSlice:
    """One MIG slice of a GPU."""

    uuid: str
    profile: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    num_multiprocessors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """One GPU in NVML's order. A field is None if the driver does not report it."""

    index: int
    name: str
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    processes: tuple[Process, ...] | None = None
    mig_enabled: bool = False
    slices: tuple[NvmlSlice, ...] = ()
    compute_mode: str | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    bar1_total_bytes: int | None = None
    memory_health: MemoryHealth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """The reading of the driver, through NVML or nvidia-smi."""

    devices: tuple[NvmlDevice, ...] = ()
    links: tuple[Link, ...] = ()
    "by NVML's indexes"
    driver: Driver = field(default_factory=Driver)
    warnings: tuple[str, ...] = ()
    source: str = "nvml"
    "`nvml` or `nvidia-smi`"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """One GPU as torch shows it: already restricted and ordered by CUDA."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    memory_free_bytes: int | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    num_multiprocessors: int | None = None
    shared_memory_optin_bytes: int | None = None
    bf16_native: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchReading:
    """The reading of the child process: torch, CUDA and bitsandbytes."""

    build: TorchBuild | None = None
    error: str | None = None
    "why torch could not be imported"
    cuda_error: str | None = None
    "why a CUDA build of torch sees no GPU or could not read one"
    driver_cuda_version: str | None = None
    devices: tuple[CudaDevice, ...] = ()
    peer_access: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    "whether the first device may read the second's memory"
    bitsandbytes_library: str | None = None
    import_errors: Mapping[str, str] = field(default_factory=dict)
    "by distribution name"
    seconds: float | None = None
    "time that importing torch took"
    stopped: str | None = None
    "the stage after CUDA's that failed, and how"
