"""One card each, from Kepler to Blackwell, with the software that suits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recordings.parts import (
    AARCH64,
    CU124,
    NEW_TORCH,
    OLD_TORCH,
    cuda_device,
    folders,
    host,
    machine,
    nodes,
    nvml_device,
    one,
    p40,
    with_p40,
    with_ram,
)

from rl_compat.hardware.types import Hardware, PciGpu, TorchBuild
from rl_compat.units import GIB, MIB

NO_BITSANDBYTES = {"bitsandbytes": None}
"its wheels have no code for Maxwell"


def k80() -> Hardware:
    """Two GPUs on one board, under the last driver for Kepler and the last torch with code for it."""
    torch = TorchBuild(version="2.5.1+cu118", cuda="11.8", arch_list=("sm_37", *CU124), cuda_available=True)
    gpus = tuple(nvml_device(index, "Tesla K80", total=11441 * MIB) for index in range(2))
    return machine(
        gpus,
        torch=torch,
        driver="470.256.02",
        cuda_version="11.4",
        module="proprietary",
        on=host(kernel="5.15.0-122-generic", file_descriptor_limit=65536),
        packages=NO_BITSANDBYTES,
    )


def gtx970() -> Hardware:
    """A card that the catalogue does not list."""
    gpu = nvml_device(0, "NVIDIA GeForce GTX 970", total=4096 * MIB, free=3700 * MIB, compute_capability=(5, 2))
    seen = cuda_device(0, gpu, num_multiprocessors=13, shared_memory_optin_bytes=49152)
    small = with_ram(16 * GIB, 12 * GIB, num_cores=8, cpu_name="Intel(R) Core(TM) i7-4790K CPU @ 4.00GHz")
    return machine(
        (gpu,),
        torch=OLD_TORCH,
        driver="580.95.05",
        cuda_version="13.0",
        module="proprietary",
        cuda=(seen,),
        on=small,
        packages=NO_BITSANDBYTES,
        pci=(PciGpu(bus_id="0000:01:00.0", device_id="13c2", kernel_driver="nvidia"),),
    )


def t4_bf16_unknown() -> Hardware:
    """A T4 whose torch only says that bf16 is supported, as it does of an emulated one (A-ENV-03, variant)."""
    gpu = nvml_device(0, "Tesla T4", total=15360 * MIB)
    seen = cuda_device(0, gpu, bf16_native=None)
    return machine((gpu,), torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open", cuda=(seen,))


def h200() -> Hardware:
    """In a container whose platform mounts the driver's libraries and names their folder in LD_LIBRARY_PATH."""
    gpu = nvml_device(0, "NVIDIA H200", total=143771 * MIB, free=143160 * MIB)
    seen = cuda_device(0, gpu, shared_memory_optin_bytes=232448, num_multiprocessors=132)
    big = host(
        cpu_name="Intel(R) Xeon(R) Platinum 8592+", num_cores=16, container="docker", file_descriptor_limit=1048576
    )
    mounted = ("/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/lib/libcuda.so.1")
    return machine(
        (gpu,),
        torch=NEW_TORCH,
        driver="580.159.04",
        cuda_version="13.0",
        module="open",
        cuda=(seen,),
        on=big,
        environment={
            "CUDA_HOME": "/usr/local/cuda",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,graphics,utility",
            "NVIDIA_VISIBLE_DEVICES": "0",
            "TORCH_CUDA_ARCH_LIST": "9.0a",
        },
        driver_facts={"cuda_library": mounted[0], "cuda_library_version": "580.159.04"},
        software={"shadowing_libraries": mounted},
    )


def jetson_orin() -> Hardware:
    """Integrated: CUDA alone knows it, memory is the host's, and torch is NVIDIA's own build."""
    gpu = nvml_device(0, "Orin", total=62840 * MIB, free=57000 * MIB, compute_capability=(8, 7), pci_bus_id=None)
    seen = cuda_device(0, gpu, num_multiprocessors=16, shared_memory_optin_bytes=166912)
    torch = TorchBuild(version="2.8.0", cuda="12.6", arch_list=("sm_87",), cuda_available=True)
    board = with_ram(
        62840 * MIB,
        57 * GIB,
        platform="Linux aarch64",
        kernel="5.15.148-tegra",
        libc="glibc 2.35",
        cpu_name="ARMv8 Processor rev 1 (v8l)",
        num_cores=12,
        cpu_features=("asimd",),
        disk_free_bytes=600 * GIB,
    )
    return machine(
        (),
        torch=torch,
        cuda=(seen,),
        nvml_error="NVML Shared Library Not Found",
        cuda_version="12.6",
        on=board,
        driver_facts={
            "device_nodes": ("/dev/nvidia0", "/dev/nvidiactl"),
            "cuda_library": "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
        },
        software={"python": "3.12.3"},
        packages={"bitsandbytes": None, "triton": None, "nvidia-cudnn-cu12": None, "nvidia-nccl-cu12": None},
    )


def gb10() -> Hardware:
    """A DGX Spark: NVML reports no memory, because it is the host's."""
    gpu = nvml_device(0, "NVIDIA GB10", total=122570 * MIB, free=114000 * MIB)
    seen = cuda_device(0, gpu, memory_free_bytes=114000 * MIB, shared_memory_optin_bytes=101376)
    board = with_ram(
        122570 * MIB,
        112 * GIB,
        platform="Linux aarch64",
        kernel="6.11.0-1016-nvidia",
        cpu_name="Cortex-X925",
        num_cores=20,
        cpu_features=("asimd", "sve", "bf16"),
    )
    return machine(
        (replace(gpu, memory_total_bytes=None, memory_free_bytes=None),),
        torch=replace(NEW_TORCH, arch_list=AARCH64),
        driver="580.95.05",
        cuda_version="13.0",
        module="open",
        cuda=(seen,),
        on=board,
        driver_facts={"cuda_library": "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "device_nodes": nodes(1)},
    )


def p4() -> Hardware:
    return one("Tesla P4", 7680 * MIB, "580.95.05", "13.0", on=with_ram(32 * GIB, 27 * GIB, num_cores=8))


def b200() -> Hardware:
    big = host(
        cpu_name="Intel(R) Xeon(R) 6776P",
        num_cores=128,
        ram_total_bytes=2048 * GIB,
        ram_limit_bytes=2048 * GIB,
        ram_available_bytes=1990 * GIB,
        shm_total_bytes=1024 * GIB,
        shm_free_bytes=1024 * GIB,
        disk_free_bytes=6000 * GIB,
        folders=folders(6000 * GIB),
        file_descriptor_limit=1048576,
        cpu_features=("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "f16c", "fma"),
    )
    return one("NVIDIA B200", 183359 * MIB, "595.58.03", "13.2", module="open", on=big)


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "k80": k80,
    "m40": lambda: one("Tesla M40 24GB", 23040 * MIB, "580.95.05", "13.0", packages=NO_BITSANDBYTES),
    "gtx970": gtx970,
    "gtx980ti": lambda: one(
        "NVIDIA GeForce GTX 980 Ti", 6144 * MIB, "580.95.05", "13.0", free=5700 * MIB, packages=NO_BITSANDBYTES
    ),
    "p4": p4,
    "p40": lambda: machine((p40(),), torch=OLD_TORCH, driver="535.274.02", cuda_version="12.2", module="proprietary"),
    "p40_r580": with_p40,
    "p100": lambda: one("Tesla P100-PCIE-16GB", 16384 * MIB, "580.95.05", "13.0"),
    "gtx1070": lambda: one("NVIDIA GeForce GTX 1070", 8192 * MIB, "580.95.05", "13.0", free=7700 * MIB),
    "gtx1080ti": lambda: one("NVIDIA GeForce GTX 1080 Ti", 11264 * MIB, "570.211.01", "12.8", free=10700 * MIB),
    "v100": lambda: one("Tesla V100-SXM2-32GB", 32768 * MIB, "550.163.01", "12.4"),
    "titanv": lambda: one("NVIDIA TITAN V", 12288 * MIB, "580.95.05", "13.0", free=11900 * MIB),
    "t4": lambda: one("Tesla T4", 15360 * MIB, "580.95.05", "13.0", module="open"),
    "t4_bf16_unknown": t4_bf16_unknown,
    "rtx2080ti": lambda: one(
        "NVIDIA GeForce RTX 2080 Ti", 11264 * MIB, "580.95.05", "13.0", module="open", free=10800 * MIB
    ),
    "gtx1660": lambda: one("NVIDIA GeForce GTX 1660", 6144 * MIB, "580.95.05", "13.0", free=5500 * MIB),
    "a100": lambda: one("NVIDIA A100-SXM4-80GB", 81920 * MIB, "580.95.05", "13.0", module="open"),
    "a100_40gb": lambda: one("NVIDIA A100-PCIE-40GB", 40960 * MIB, "580.95.05", "13.0", module="open"),
    "a10": lambda: one("NVIDIA A10", 23028 * MIB, "580.95.05", "13.0", module="open"),
    "rtx3060": lambda: one(
        "NVIDIA GeForce RTX 3060", 12288 * MIB, "580.95.05", "13.0", module="open", free=11900 * MIB
    ),
    "rtx3090": lambda: one(
        "NVIDIA GeForce RTX 3090", 24576 * MIB, "580.95.05", "13.0", module="open", free=23900 * MIB
    ),
    "l4": lambda: one("NVIDIA L4", 23034 * MIB, "580.95.05", "13.0", module="open"),
    "l40s": lambda: one("NVIDIA L40S", 46068 * MIB, "580.95.05", "13.0", module="open"),
    "rtx4090": lambda: one(
        "NVIDIA GeForce RTX 4090", 24564 * MIB, "595.58.03", "13.2", module="open", free=24000 * MIB
    ),
    "h100": lambda: one("NVIDIA H100 80GB HBM3", 81559 * MIB, "580.95.05", "13.0", module="open"),
    "h200": h200,
    "b200": b200,
    "rtx5090": lambda: one("NVIDIA GeForce RTX 5090", 32607 * MIB, "595.58.03", "13.2", module="open"),
    "rtx_pro_6000": lambda: one(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887 * MIB, "595.58.03", "13.2", module="open"
    ),
    "jetson_orin": jetson_orin,
    "gb10": gb10,
}
