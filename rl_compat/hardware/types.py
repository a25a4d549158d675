"""Facts about a machine, each with its source, that survive a round trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Another program that holds memory on a device."""

    pid: int
    name: str | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHealth:
    """Errors of a card's memory and their repair; None if the card does not report them."""

    uncorrected_errors: int | None = None
    "ECC errors since the driver was loaded"
    retired_pages: int | None = None
    "pages or rows of memory that the driver took out of use"
    repair_pending: bool = False
    "a reset of the card has to complete a repair"
    repair_failed: bool = False
    "no spare rows are left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU or MIG slice that CUDA shows this process, in CUDA's order."""

    index: int
    "position in CUDA's order among the visible devices: `cuda:<index>`"
    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    memory_free_bytes: int
    uuid: str | None = None
    pci_bus_id: str | None = None
    nvml_index: int | None = None
    "position in NVML's and nvidia-smi's order"
    num_multiprocessors: int | None = None
    shared_memory_optin_bytes: int | None = None
    "largest shared memory per block"
    mig_profile: str | None = None
    "such as `1g.10gb` if the device is a MIG slice"
    bf16_native: bool | None = None
    processes: tuple[Process, ...] | None = None
    "None if it could not be read"
    compute_mode: str | None = None
    "`default`, `exclusive_process` or `prohibited`"
    pcie_width: int | None = None
    "lanes in use now"
    pcie_width_max: int | None = None
    "lanes that card and slot support"
    bar1_total_bytes: int | None = None
    mig_slices: int | None = None
    "slices of the whole GPU, 0 in MIG mode before any is created; None outside MIG mode"
    memory_health: MemoryHealth | None = None
    nvml_memory_total_bytes: int | None = None
    "NVML's total if it differs from CUDA's by more than a tenth"
    sources: Mapping[str, str] = field(default_factory=dict)
    "field name to `nvml`, `cuda`, `nvidia-smi`, `catalogue` or `rule`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """An NVIDIA display or 3D controller on the PCI bus, with or without a driver."""

    bus_id: str
    device_id: str
    "four hexadecimal digits, `1b38` for a Tesla P40"
    kernel_driver: str | None = None
    "`nvidia`, `nouveau`, `vfio-pci` …; None if no driver is bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error of a card that the driver wrote into the kernel log."""

    bus_id: str
    number: int
    "NVIDIA's number of the error, 79 for a card that fell off the bus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connection between two visible devices."""

    first: int
    second: int
    kind: str | None = None
    "`nvlink`, `pcie_switch`, `pcie_host_bridge`, `numa_node` or `system` (across sockets)"
    peer_access: bool | None = None
    "whether CUDA lets each read the memory of the other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that training writes to, or its nearest existing parent."""

    role: str
    "`run`, `temporary`, `hub_cache`, `model_cache` or `packages`"
    path: str
    writable: bool
    free_bytes: int | None = None
    file_system: str | None = None
    "`ext4`, `nfs4`, `overlay`, `tmpfs`, `9p` …"
    error: str | None = None
    "why a test file could not be written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server for packages or models."""

    role: str
    "`hub`, `torch_index` or `package_index`"
    url: str
    "without user name, password and query"
    reachable: bool
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    version: str | None = None
    cuda_version: str | None = None
    "newest CUDA the driver can run, as `12.8`"
    nvml_error: str | None = None
    kernel_module: str | None = None
    "`open` or `proprietary`"
    module_version: str | None = None
    "of the kernel module that is loaded; `version` is that of the library"
    device_nodes: tuple[str, ...] | None = None
    "`/dev/nvidia*` (under WSL `/dev/dxg`) that this process may open"
    closed_device_nodes: tuple[str, ...] = ()
    "device nodes that exist and that this process may not open"
    cuda_library: str | None = None
    "where `libcuda.so.1` was found"
    cuda_library_version: str | None = None
    "version of the driver that the library belongs to, from its file name; None if the name has none"
    xids: tuple[Xid, ...] | None = None
    "errors in the kernel log, each once; None if it cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    platform: str
    kernel: str
    cpu_name: str
    num_cores: int
    "cores this process may use: affinity and cgroup quota applied"
    ram_total_bytes: int
    "of the host"
    ram_limit_bytes: int
    "of this process: the cgroup limit if there is one"
    ram_available_bytes: int
    "what can be allocated without swapping, within the limit"
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    disk_free_bytes: int | None = None
    "in the working directory"
    cpu_features: tuple[str, ...] = ()
    "`avx2`, `avx512f`, `avx512_bf16`, `amx_bf16` …"
    container: str | None = None
    "`docker`, `podman`, `kubernetes`, `lxc` … or None"
    wsl: bool = False
    file_descriptor_limit: int | None = None
    locale_encoding: str | None = None
    "default text encoding of Python, usually `utf-8`"
    folders: tuple[Folder, ...] = ()
    libc: str | None = None
    "`glibc 2.35` or `musl`"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    version: str
    cuda: str | None = None
    "CUDA version the wheel was built for, None for a CPU build"
    arch_list: tuple[str, ...] = ()
    "`sm_60`, `compute_90` … as compiled into the wheel"
    cuda_available: bool = False
    cuda_error: str | None = None
    "the first error while CUDA listed its devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    "installed version by distribution name; absent if not installed"
    torch: TorchBuild | None = None
    torch_error: str | None = None
    "why torch could not be imported; None if it was imported or is not installed"
    bitsandbytes_library: str | None = None
    "`cuda`, `cpu`, or the loading error; None if not installed or not checked"
    import_errors: Mapping[str, str] = field(default_factory=dict)
    "why an installed package could not be imported, by distribution name; without torch and bitsandbytes"
    executable: str | None = None
    "this Python"
    environment_kind: str | None = None
    "`venv`, `conda` or `system`"
    externally_managed: bool = False
    "externally managed (PEP 668): pip refuses to install here"
    locations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    "folders on the path that contain a package, in import order; only for torch and packages found more than once"
    location_versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    "the versions in those folders, `unknown` without metadata; empty if they were not read"
    launcher: str | None = None
    "the Python that the command `rlc` of the shell starts; None if there is no such command"
    shadowing_libraries: tuple[str, ...] = ()
    "CUDA libraries in LD_LIBRARY_PATH, which take precedence over those of torch"
    torch_seconds: float | None = None
    "time that importing torch took"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine as this process sees it."""

    devices: tuple[Device, ...]
    hidden_devices: tuple[Device, ...] = ()
    "hidden by CUDA_VISIBLE_DEVICES; `index` is NVML's"
    links: tuple[Link, ...] = ()
    "between visible devices"
    pci_gpus: tuple[PciGpu, ...] | None = None
    "None if the bus could not be read"
    other_gpus: tuple[str, ...] = ()
    "names of GPUs by other vendors than NVIDIA, which nothing here uses"
    driver: Driver = field(default_factory=Driver)
    host: Host
    software: Software
    environment: Mapping[str, str] = field(default_factory=dict)
    "variables that affect CUDA and the caches; secrets appear as `(set)`"
    network: tuple[Endpoint, ...] | None = None
    "None if not checked"
    warnings: tuple[str, ...] = ()
    "failed or contradicting readings"
    recorded_at: str | None = None
    emulated: str | None = None
    "name of the card that this hardware emulates"
    exchange: Exchange | None = None
    "None if it was not tried"
    nodes: tuple[Node, ...] = ()
    "of the Ray cluster that was asked; empty for one machine"
    schema: int = SCHEMA_VERSION

    def weakest_capability(self) -> tuple[int, int] | None:
        """The lowest compute capability of the visible devices; None without a GPU."""
        return min((device.compute_capability for device in self.devices), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What came of a sum of tensors between two processes of this machine."""

    backend: str
    "`nccl` between two GPUs, `gloo` on the CPU"
    error: str | None = None
    "why there was no result"
    num_wrong: int = 0
    "values that differ from their sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface and one of its IPv4 addresses."""

    name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of a Ray cluster, as a process on it sees it."""

    address: str
    "at which Ray reaches it"
    name: str = ""
    "host name"
    num_cpus: int = 0
    "that Ray gives out"
    num_gpus: int = 0
    "that Ray gives out"
    hardware: Hardware | None = None
    "None if it could not be read"
    error: str | None = None
    "why it could not be read"
    version: str | None = None
    "of rl_compat there"
    clock_offset_seconds: float | None = None
    "its clock minus that of the machine that asked"
    name_address: str | None = None
    "that the host name resolves to; None if it does not"
    interfaces: tuple[Interface, ...] = ()
    unreachable: tuple[str, ...] = ()
    "addresses of nodes to whose ports it cannot connect"
