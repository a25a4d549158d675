"""What a recorded machine is put together from: readings of healthy sources, complete, each fact replaceable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from rl_compat.capability.binaries import parse_version
from rl_compat.hardware.gpu.catalogue import find_gpu, read_table
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlReading, TorchReading
from rl_compat.hardware.probe import assemble
from rl_compat.hardware.types import Driver, Endpoint, Folder, Hardware, Host, Link, PciGpu, Software, TorchBuild
from rl_compat.units import GIB, MIB

CONTEXT_BYTES = 300 * MIB
CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU132 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
AARCH64 = ("sm_80", "sm_90", "sm_100", "sm_110", "sm_120")

OLD_TORCH = TorchBuild(version="2.14.1+cu126", cuda="12.6", arch_list=CU126, cuda_available=True)
NEW_TORCH = TorchBuild(version="2.15.0+cu132", cuda="13.2", arch_list=CU132, cuda_available=True)
CPU_TORCH = TorchBuild(version="2.15.0+cpu")
BLIND_TORCH = replace(NEW_TORCH, cuda_available=False)
"the newest build, which sees no GPU"

SITE = "/home/ada/rl/.venv/lib/python3.12/site-packages"
PACKAGES = {
    "transformers": "5.24.0",
    "peft": "0.21.2",
    "datasets": "5.2.0",
    "bitsandbytes": "0.50.2",
    "accelerate": "1.15.0",
    "tokenizers": "0.23.3",
    "huggingface-hub": "2.4.0",
    "safetensors": "0.8.0",
    "gguf": "0.19.0",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
    "nvidia-ml-py": "13.615.71",
    "psutil": "7.2.2",
    "typer": "0.29.2",
    "rich": "15.0.0",
}
BROUGHT_BY_TORCH = {
    "2.5": {"triton": "3.1.0", "nvidia-cudnn-cu12": "9.1.0.70", "nvidia-nccl-cu12": "2.21.5"},
    "2.6": {"triton": "3.2.0", "nvidia-cudnn-cu12": "9.1.0.70", "nvidia-nccl-cu12": "2.21.5"},
    "2.8": {"triton": "3.4.0", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-nccl-cu12": "2.27.3"},
    "2.11": {"triton": "3.6.0", "nvidia-cudnn-cu13": "9.19.0.56", "nvidia-nccl-cu13": "2.28.9"},
    "2.14": {"triton": "3.8.0", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-nccl-cu12": "2.29.3"},
    "2.15": {"triton": "3.9.0", "nvidia-cudnn-cu13": "9.26.0.51", "nvidia-nccl-cu13": "2.30.7"},
}


def uuid(index: int) -> str:
    return f"{index + 1}1111111-2222-3333-4444-555555555555"


def nvml_device(index: int, name: str, *, total: int, free: int | None = None, **facts: object) -> NvmlDevice:
    gpu = find_gpu(name)
    values: dict[str, object] = {
        "compute_capability": gpu.compute_capability if gpu else None,
        "uuid": f"GPU-{uuid(index)}",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "processes": (),
        "compute_mode": "default",
        "pcie_width": 16,
        "pcie_width_max": 16,
        "bar1_total_bytes": 1 << (total - 1).bit_length(),
        **facts,
    }
    return NvmlDevice(
        index=index,
        name=name,
        memory_total_bytes=total,
        memory_free_bytes=total - 8 * MIB if free is None else free,
        **values,
    )  # type: ignore[arg-type]


def cuda_device(index: int, of: NvmlDevice, **facts: object) -> CudaDevice:
    gpu = find_gpu(of.name, of.memory_total_bytes)
    assert of.memory_total_bytes is not None
    assert of.memory_free_bytes is not None
    assert of.uuid is not None
    values: dict[str, object] = {
        "name": of.name,
        "compute_capability": of.compute_capability,
        "memory_total_bytes": of.memory_total_bytes,
        "memory_free_bytes": of.memory_free_bytes - CONTEXT_BYTES,
        "uuid": of.uuid.removeprefix("GPU-"),
        "pci_bus_id": (of.pci_bus_id or "").lower() or None,
        "num_multiprocessors": gpu.num_multiprocessors if gpu else None,
        "bf16_native": of.compute_capability is not None and of.compute_capability >= (8, 0),
        **facts,
    }
    return CudaDevice(index=index, **values)  # type: ignore[arg-type]


def folders(free: int = 400 * GIB, **changes: Any) -> tuple[Folder, ...]:
    """The folders of a user `ada`; `changes` by role."""
    paths = {
        "run": "/home/ada/rl",
        "temporary": "/tmp",
        "hub_cache": "/home/ada/.cache/huggingface/hub",
        "model_cache": "/home/ada/.cache/rl_compat",
        "packages": SITE,
    }
    found = []
    for role, path in paths.items():
        values: dict[str, Any] = {"path": path, "writable": True, "free_bytes": free, "file_system": "ext4"}
        found.append(Folder(role=role, **{**values, **changes.get(role, {})}))
    return tuple(found)


def host(**facts: object) -> Host:
    values: dict[str, object] = {
        "platform": "Linux x86_64",
        "kernel": "6.8.0-71-generic",
        "cpu_name": "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        "num_cores": 28,
        "ram_total_bytes": 128 * GIB,
        "ram_limit_bytes": 128 * GIB,
        "ram_available_bytes": 118 * GIB,
        "shm_total_bytes": 64 * GIB,
        "shm_free_bytes": 64 * GIB,
        "disk_free_bytes": 400 * GIB,
        "cpu_features": ("avx2", "f16c", "fma"),
        "file_descriptor_limit": 1024,
        "locale_encoding": "utf-8",
        "libc": "glibc 2.39",
        "folders": folders(),
        **facts,
    }
    return Host(**values)  # type: ignore[arg-type]


def with_ram(total: int, available: int, **facts: object) -> Host:
    """A host of that much memory; /dev/shm is half of it, as a tmpfs is by default."""
    sizes = {"ram_total_bytes": total, "ram_limit_bytes": total, "ram_available_bytes": available}
    return host(**{**sizes, "shm_total_bytes": total // 2, "shm_free_bytes": total // 2, **facts})


def network(**errors: str) -> tuple[Endpoint, ...]:
    """Three servers that answer, less those with an error by role."""
    urls = {
        "hub": "https://huggingface.co",
        "torch_index": "https://download.pytorch.org/whl",
        "package_index": "https://pypi.org/simple",
    }
    return tuple(
        Endpoint(role=role, url=url, reachable=False, error=errors[role])
        if role in errors
        else Endpoint(role=role, url=url, reachable=True, seconds=0.12)
        for role, url in urls.items()
    )


def pci_gpus(gpus: tuple[NvmlDevice, ...], kernel_driver: str | None = "nvidia") -> tuple[PciGpu, ...]:
    """The same cards as the PCI bus lists them, served by a driver or by none."""
    ids = {row["id"]: row["pci_device_ids"] for row in read_table("gpus")["gpus"]}
    found = []
    for device in gpus:
        gpu = find_gpu(device.name, device.memory_total_bytes)
        known = ids[gpu.id] if gpu else None
        bus = (device.pci_bus_id or "").lower().removeprefix("0000")
        found.append(PciGpu(bus_id=bus, device_id=known[0] if known else "1fb2", kernel_driver=kernel_driver))
    return tuple(found)


def nodes(num_gpus: int) -> tuple[str, ...]:
    cards = tuple(f"/dev/nvidia{index}" for index in range(num_gpus))
    return (*cards, "/dev/nvidiactl", "/dev/nvidia-uvm") if num_gpus else ()


def packages_of(torch: TorchBuild | None) -> dict[str, str]:
    """What an installation of rl_compat with that torch brings; the package index's builds have no local version."""
    if torch is None:
        return dict(PACKAGES)
    brought = BROUGHT_BY_TORCH.get(".".join(torch.version.split(".")[:2]), {}) if torch.cuda else {}
    version = torch.version.partition("+")[0] if torch.version == NEW_TORCH.version else torch.version
    return {"torch": version, **PACKAGES, **brought}


def machine(
    gpus: tuple[NvmlDevice, ...],
    *,
    torch: TorchBuild | None,
    driver: str | None = None,
    cuda_version: str | None = None,
    module: str | None = None,
    order: tuple[int, ...] | None = None,
    cuda: tuple[CudaDevice, ...] | None = None,
    nvml_error: str | None = None,
    cuda_error: str | None = None,
    torch_error: str | None = None,
    environment: Mapping[str, str] | None = None,
    on: Host | None = None,
    library: str | None = None,
    pci: tuple[PciGpu, ...] | None = None,
    driver_facts: Mapping[str, object] | None = None,
    software: Mapping[str, Any] | None = None,
    packages: Mapping[str, str | None] | None = None,
    links: tuple[Link, ...] = (),
    peer_access: bool | None = None,
    reached: tuple[Endpoint, ...] | None = None,
    source: str = "nvml",
) -> Hardware:
    """One machine, healthy where nothing else is said: `order` is CUDA's of the GPUs, a package None is not there."""
    sees = torch is not None and torch.cuda_available
    if sees and cuda is None:
        cuda = tuple(cuda_device(place, gpus[index]) for place, index in enumerate(order or range(len(gpus))))
    torch = replace(torch, cuda_error=cuda_error) if torch else None
    pairs = permutations(range(len(cuda or ())), 2)
    reading = TorchReading(
        build=torch,
        error=torch_error,
        cuda_error=cuda_error,
        devices=(cuda or ()) if sees else (),
        driver_cuda_version=cuda_version,
        peer_access={} if peer_access is None else dict.fromkeys(pairs, peer_access),
        bitsandbytes_library=library or ("cuda" if sees else "cpu" if torch else None),
        seconds=2.1 if torch else None,
    )
    facts: dict[str, Any] = {
        "version": driver,
        "cuda_version": None if nvml_error else cuda_version,
        "nvml_error": nvml_error,
        "kernel_module": module,
        "module_version": driver if module else None,
        "device_nodes": nodes(len(gpus)),
        "cuda_library": "/usr/lib/x86_64-linux-gnu/libcuda.so.1" if driver else None,
        **(driver_facts or {}),
    }
    nvml = NvmlReading(devices=gpus, links=links, driver=Driver(**facts), source=source)
    installed = {**packages_of(torch), **(packages or {})}
    values: dict[str, Any] = {
        "python": "3.12.8",
        "packages": {name: version for name, version in installed.items() if version is not None},
        "torch": torch,
        "torch_error": torch_error,
        "bitsandbytes_library": reading.bitsandbytes_library if installed.get("bitsandbytes") else None,
        "executable": "/home/ada/rl/.venv/bin/python",
        "environment_kind": "venv",
        "torch_seconds": reading.seconds,
        **(software or {}),
    }
    found = assemble(
        nvml,
        reading,
        on or host(),
        environment=environment or {},
        software=Software(**values),
        pci_gpus=pci_gpus(gpus) if pci is None else pci,
        network=network() if reached is None else reached,
    )
    return replace(found, recorded_at="2026-11-29T12:00:00+00:00")


def one(
    name: str,
    total: int,
    driver: str,
    cuda_version: str,
    *,
    module: str = "proprietary",
    free: int | None = None,
    packages: Mapping[str, str | None] | None = None,
    on: Host | None = None,
    **facts: object,
) -> Hardware:
    """A machine with one card and the torch that suits it."""
    gpu = nvml_device(0, name, total=total, free=free, **facts)
    old = gpu.compute_capability is not None and gpu.compute_capability < (7, 5)
    too_old = parse_version(driver) < (580,)
    torch = OLD_TORCH if old or too_old else NEW_TORCH
    return machine(
        (gpu,), torch=torch, driver=driver, cuda_version=cuda_version, module=module, packages=packages, on=on
    )


def p40(index: int = 0) -> NvmlDevice:
    return nvml_device(index, "Tesla P40", total=23040 * MIB, free=22913 * MIB)


def rtx3060(index: int = 0) -> NvmlDevice:
    return nvml_device(index, "NVIDIA GeForce RTX 3060", total=12288 * MIB, free=11900 * MIB)


def rtx3090(index: int = 0, **facts: Any) -> NvmlDevice:
    return nvml_device(index, "NVIDIA GeForce RTX 3090", **{"total": 24576 * MIB, "free": 24100 * MIB, **facts})


def rtx4090(index: int = 0) -> NvmlDevice:
    return nvml_device(index, "NVIDIA GeForce RTX 4090", total=24564 * MIB, free=24000 * MIB)


def rtx5090(index: int = 0) -> NvmlDevice:
    return nvml_device(index, "NVIDIA GeForce RTX 5090", total=32607 * MIB)


def with_3060(torch: TorchBuild | None = NEW_TORCH, **facts: Any) -> Hardware:
    """An RTX 3060 under a driver of 2026, changed in one respect."""
    values = {"driver": "580.95.05", "cuda_version": "13.0", "module": "open", **facts}
    return machine((rtx3060(),), torch=torch, **values)


def with_3090(torch: TorchBuild | None = NEW_TORCH, **facts: Any) -> Hardware:
    """An RTX 3090 under a driver of 2026, changed in one respect."""
    values = {"driver": "580.95.05", "cuda_version": "13.0", "module": "open", **facts}
    return machine((rtx3090(),), torch=torch, **values)


def with_p40(torch: TorchBuild | None = OLD_TORCH, **facts: Any) -> Hardware:
    """A Tesla P40 under the last driver that serves it, changed in one respect."""
    values = {"driver": "580.95.05", "cuda_version": "13.0", "module": "proprietary", **facts}
    return machine((p40(),), torch=torch, **values)
