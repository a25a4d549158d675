"""Writes the recordings beside it: readings of the sources, put together by the probe's own code.

The H200's GPU facts were measured; the others are composed of the catalogue and of what public reports of such
machines show. Run as `python tests/recordings/compose.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rl_compat.hardware.binaries import parse_version
from rl_compat.hardware.catalogue import find_gpu
from rl_compat.hardware.probe import assemble
from rl_compat.hardware.readings import CudaDevice, NvmlDevice, NvmlReading, NvmlSlice, TorchReading
from rl_compat.hardware.recording import save_recording
from rl_compat.hardware.types import Driver, Hardware, Host, Process, Software, TorchBuild
from rl_compat.units import GIB, MIB

CONTEXT_BYTES = 300 * MIB
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU132 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")

OLD_TORCH = TorchBuild(version="2.14.1+cu126", cuda="12.6", arch_list=CU126, cuda_available=True)
NEW_TORCH = TorchBuild(version="2.15.0+cu132", cuda="13.2", arch_list=CU132, cuda_available=True)
CPU_TORCH = TorchBuild(version="2.15.0+cpu")

PACKAGES = {"transformers": "5.24.0", "peft": "0.21.2", "datasets": "5.2.0", "bitsandbytes": "0.50.2"}


def uuid(index: int) -> str:
    return f"{index + 1}1111111-2222-3333-4444-555555555555"


def nvml_device(index: int, name: str, *, total: int, free: int | None = None, **facts: object) -> NvmlDevice:
    gpu = find_gpu(name)
    values: dict[str, object] = {
        "compute_capability": gpu.compute_capability if gpu else None,
        "uuid": f"GPU-{uuid(index)}",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "processes": (),
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
        **facts,
    }
    return Host(**values)  # type: ignore[arg-type]


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
) -> Hardware:
    """One machine; `order` is CUDA's order of the GPUs."""
    sees = torch is not None and torch.cuda_available
    seen = tuple(cuda_device(place, gpus[index]) for place, index in enumerate(order or range(len(gpus))))
    reading = TorchReading(
        build=torch,
        error=torch_error,
        cuda_error=cuda_error,
        devices=(seen if cuda is None else cuda) if sees else (),
        driver_cuda_version=cuda_version,
        bitsandbytes_library=library or ("cuda" if sees else "cpu" if torch else None),
    )
    facts = Driver(version=driver, cuda_version=None if nvml_error else cuda_version, nvml_error=nvml_error)
    nvml = NvmlReading(devices=gpus, driver=replace(facts, kernel_module=module))
    found = assemble(nvml, reading, on or host(), environment=environment or {})
    version = torch.version if torch else "2.14.1+cu126"
    software = Software(
        python="3.12.8",
        packages={"torch": version, **PACKAGES},
        torch=torch,
        torch_error=torch_error,
        bitsandbytes_library=reading.bitsandbytes_library,
    )
    return replace(found, software=software, recorded_at="2026-11-29T12:00:00+00:00")


def one(
    name: str,
    total: int,
    driver: str,
    cuda_version: str,
    *,
    module: str = "proprietary",
    free: int | None = None,
    **facts: object,
) -> Hardware:
    """A machine with one card and the torch that suits it."""
    gpu = nvml_device(0, name, total=total, free=free, **facts)
    old = gpu.compute_capability is not None and gpu.compute_capability < (7, 5)
    too_old = parse_version(driver) < (580,)
    torch = OLD_TORCH if old or too_old else NEW_TORCH
    return machine((gpu,), torch=torch, driver=driver, cuda_version=cuda_version, module=module)


def p40() -> NvmlDevice:
    return nvml_device(0, "Tesla P40", total=23040 * MIB, free=22913 * MIB)


def mig_slice() -> Hardware:
    part = NvmlSlice(
        uuid=f"MIG-{uuid(7)}",
        profile="3g.20gb",
        memory_total_bytes=19968 * MIB,
        memory_free_bytes=19955 * MIB,
        num_multiprocessors=42,
    )
    other = replace(part, uuid=f"MIG-{uuid(8)}")
    gpu = nvml_device(0, "NVIDIA A100-SXM4-40GB", total=40960 * MIB, mig_enabled=True, slices=(part, other))
    seen = cuda_device(
        0,
        gpu,
        name="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        memory_total_bytes=19968 * MIB,
        memory_free_bytes=19640 * MIB,
        num_multiprocessors=42,
        uuid=uuid(7),
        shared_memory_optin_bytes=166912,
    )
    return machine(
        (gpu,),
        torch=NEW_TORCH,
        driver="580.95.05",
        cuda_version="13.0",
        module="open",
        cuda=(seen,),
        environment={"CUDA_VISIBLE_DEVICES": part.uuid},
    )


def h200() -> Hardware:
    gpu = nvml_device(0, "NVIDIA H200", total=143771 * MIB, free=143160 * MIB)
    seen = cuda_device(0, gpu, shared_memory_optin_bytes=232448, num_multiprocessors=132)
    big = host(cpu_name="Intel(R) Xeon(R) Platinum 8592+", num_cores=16, container="docker")
    return machine(
        (gpu,), torch=NEW_TORCH, driver="580.159.04", cuda_version="13.0", module="open", cuda=(seen,), on=big
    )


def wsl() -> Hardware:
    windows = nvml_device(0, "NVIDIA GeForce RTX 3070", total=8192 * MIB, free=7100 * MIB)
    kernel = host(
        kernel="5.15.167.4-microsoft-standard-WSL2",
        wsl=True,
        num_cores=12,
        cpu_name="AMD Ryzen 5 5600X 6-Core Processor",
        ram_total_bytes=16 * GIB,
        ram_limit_bytes=16 * GIB,
        ram_available_bytes=14 * GIB,
    )
    return machine(
        (),
        torch=NEW_TORCH,
        cuda_version="13.0",
        cuda=(cuda_device(0, windows),),
        nvml_error="NVML Shared Library Not Found",
        on=kernel,
    )


def laptop() -> Hardware:
    small = host(
        cpu_name="Intel(R) Core(TM) i5-1135G7 @ 2.40GHz",
        num_cores=8,
        ram_total_bytes=16 * GIB,
        ram_limit_bytes=16 * GIB,
        ram_available_bytes=11 * GIB,
        disk_free_bytes=60 * GIB,
        cpu_features=("avx2", "avx512f", "avx512_vnni", "f16c", "fma"),
    )
    return machine((), torch=CPU_TORCH, nvml_error="NVML Shared Library Not Found", on=small)


def container() -> Hardware:
    limited = host(
        num_cores=4,
        ram_total_bytes=1024 * GIB,
        ram_limit_bytes=32 * GIB,
        ram_available_bytes=30 * GIB,
        shm_total_bytes=64 * MIB,
        shm_free_bytes=64 * MIB,
        container="docker",
    )
    gpus = tuple(nvml_device(index, "NVIDIA A10", total=23028 * MIB) for index in range(2))
    return machine(gpus, torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open", on=limited)


def shared_card() -> Hardware:
    foreign = Process(pid=4321, name="python", used_bytes=int(20.5 * GIB))
    gpu = nvml_device(0, "NVIDIA GeForce RTX 3090", total=24576 * MIB, free=3 * GIB, processes=(foreign,))
    return machine((gpu,), torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open")


def mixed_order() -> Hardware:
    display = nvml_device(0, "NVIDIA T400 4GB", total=4096 * MIB, compute_capability=(7, 5))
    big = nvml_device(1, "NVIDIA GeForce RTX 4090", total=24564 * MIB)
    return machine(
        (display, big), torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open", order=(1, 0)
    )


def mixed_ages() -> Hardware:
    new = nvml_device(1, "NVIDIA A100-PCIE-40GB", total=40960 * MIB)
    return machine(
        (p40(), new), torch=OLD_TORCH, driver="580.95.05", cuda_version="13.0", module="proprietary", order=(1, 0)
    )


def wheel_without_code() -> Hardware:
    torch = TorchBuild(version="2.8.0+cu128", cuda="12.8", arch_list=CU128, cuda_available=True)
    return machine((p40(),), torch=torch, driver="575.57.08", cuda_version="12.9", module="proprietary")


def cpu_torch_on_gpu() -> Hardware:
    gpu = nvml_device(0, "NVIDIA GeForce RTX 3060", total=12288 * MIB)
    torch = TorchBuild(version="2.6.0+cpu")
    return machine((gpu,), torch=torch, driver="560.35.03", cuda_version="12.6", module="open")


def old_driver() -> Hardware:
    gpu = nvml_device(0, "NVIDIA GeForce RTX 3090", total=24576 * MIB)
    torch = TorchBuild(version="2.6.0+cu124", cuda="12.4", arch_list=CU126)
    error = "The NVIDIA driver on your system is too old (found version 11040)."
    return machine((gpu,), torch=torch, driver="470.86", cuda_version="11.4", module="proprietary", cuda_error=error)


def library_conflict() -> Hardware:
    gpu = nvml_device(0, "NVIDIA GeForce RTX 3090", total=24576 * MIB)
    error = "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
    return machine(
        (gpu,),
        torch=None,
        torch_error=error,
        driver="560.35.03",
        cuda_version="12.6",
        module="open",
        environment={"LD_LIBRARY_PATH": "/usr/local/cuda-12.1/lib64"},
    )


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "p40": lambda: machine((p40(),), torch=OLD_TORCH, driver="535.274.02", cuda_version="12.2", module="proprietary"),
    "p100": lambda: one("Tesla P100-PCIE-16GB", 16384 * MIB, "580.95.05", "13.0"),
    "v100": lambda: one("Tesla V100-SXM2-32GB", 32768 * MIB, "550.163.01", "12.4"),
    "t4": lambda: one("Tesla T4", 15360 * MIB, "580.95.05", "13.0", module="open"),
    "gtx1660": lambda: one("NVIDIA GeForce GTX 1660", 6144 * MIB, "580.95.05", "13.0", free=5500 * MIB),
    "rtx3090": lambda: one(
        "NVIDIA GeForce RTX 3090", 24576 * MIB, "580.95.05", "13.0", module="open", free=23900 * MIB
    ),
    "rtx4090": lambda: one(
        "NVIDIA GeForce RTX 4090", 24564 * MIB, "595.58.03", "13.2", module="open", free=24000 * MIB
    ),
    "a100": lambda: one("NVIDIA A100-SXM4-80GB", 81920 * MIB, "580.95.05", "13.0", module="open"),
    "h100": lambda: one("NVIDIA H100 80GB HBM3", 81559 * MIB, "580.95.05", "13.0", module="open"),
    "h200": h200,
    "rtx5090": lambda: one("NVIDIA GeForce RTX 5090", 32607 * MIB, "595.58.03", "13.2", module="open"),
    "mixed_t400_rtx4090": mixed_order,
    "mixed_p40_a100": mixed_ages,
    "wsl_rtx3070": wsl,
    "a100_mig_3g20gb": mig_slice,
    "laptop_no_gpu": laptop,
    "container_32gib_two_a10": container,
    "rtx3090_shared": shared_card,
    "p40_cu128_wheel": wheel_without_code,
    "rtx3060_cpu_torch": cpu_torch_on_gpu,
    "rtx3090_old_driver": old_driver,
    "rtx3090_library_conflict": library_conflict,
}


def main() -> None:
    for name, compose in RECORDINGS.items():
        save_recording(compose(), Path(__file__).with_name(f"{name}.json"))


if __name__ == "__main__":
    main()
