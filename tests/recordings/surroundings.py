"""What is around the cards: no card at all, Windows, containers, and hosts short of something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recordings.parts import (
    BLIND_TORCH,
    CPU_TORCH,
    NEW_TORCH,
    cuda_device,
    folders,
    host,
    machine,
    network,
    nodes,
    nvml_device,
    pci_gpus,
    rtx3060,
    with_3060,
    with_3090,
    with_ram,
)

from rl_compat.hardware.types import Hardware, Host, TorchBuild
from rl_compat.units import GIB, MIB

NO_NVML = "NVML Shared Library Not Found"
UNREACHABLE = "ConnectionError: [Errno 101] Network is unreachable"


def cpu_only(on: Host, torch: TorchBuild = CPU_TORCH, **software: object) -> Hardware:
    return machine((), torch=torch, nvml_error=NO_NVML, on=on, software=software)


def laptop() -> Hardware:
    small = with_ram(
        16 * GIB,
        11 * GIB,
        cpu_name="Intel(R) Core(TM) i5-1135G7 @ 2.40GHz",
        num_cores=8,
        disk_free_bytes=60 * GIB,
        folders=folders(60 * GIB),
        cpu_features=("avx2", "avx512f", "avx512_vnni", "f16c", "fma"),
    )
    return cpu_only(small)


def eight_cores() -> Hardware:
    """No NVML, a CPU build of 2.6, 8 cores, 16 GiB (A-ENV-15)."""
    return cpu_only(with_ram(16 * GIB, 12 * GIB, num_cores=8), TorchBuild(version="2.6.0+cpu"))


def ci() -> Hardware:
    runner = with_ram(
        7 * GIB,
        6 * GIB,
        num_cores=2,
        cpu_name="AMD EPYC 7763 64-Core Processor",
        container="docker",
        shm_total_bytes=64 * MIB,
        shm_free_bytes=64 * MIB,
        disk_free_bytes=14 * GIB,
        folders=folders(14 * GIB),
        file_descriptor_limit=1048576,
    )
    return cpu_only(runner)


def server() -> Hardware:
    features = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "f16c", "fma")
    return cpu_only(host(cpu_name="Intel(R) Xeon(R) Platinum 8480+", num_cores=64, cpu_features=features))


def aarch64() -> Hardware:
    arm = with_ram(
        64 * GIB,
        60 * GIB,
        platform="Linux aarch64",
        cpu_name="Neoverse-V1",
        num_cores=16,
        cpu_features=("asimd", "sve", "bf16"),
    )
    return cpu_only(arm)


def wsl_host(**facts: object) -> Host:
    return with_ram(
        16 * GIB,
        14 * GIB,
        **{
            "kernel": "5.15.167.4-microsoft-standard-WSL2",
            "wsl": True,
            "num_cores": 12,
            "cpu_name": "AMD Ryzen 5 5600X 6-Core Processor",
            **facts,
        },
    )


WSL_DRIVER = {
    "device_nodes": ("/dev/dxg",),
    "cuda_library": "/usr/lib/wsl/lib/libcuda.so.1",
    "module_version": None,
}


def wsl() -> Hardware:
    """NVML does not answer and CUDA does (A-ENV-06)."""
    windows = nvml_device(0, "NVIDIA GeForce RTX 3070", total=8192 * MIB, free=7100 * MIB)
    return machine(
        (),
        torch=NEW_TORCH,
        cuda_version="13.0",
        cuda=(cuda_device(0, windows),),
        nvml_error=NO_NVML,
        on=wsl_host(),
        driver_facts=WSL_DRIVER,
    )


def wsl_with_nvml() -> Hardware:
    """As most are. Processes of Windows are not told."""
    card = nvml_device(0, "NVIDIA GeForce RTX 4070", total=12282 * MIB, free=11000 * MIB, processes=None)
    return machine(
        (card,),
        torch=NEW_TORCH,
        driver="581.57",
        cuda_version="13.0",
        on=wsl_host(kernel="6.6.87.2-microsoft-standard-WSL2"),
        pci=(),
        driver_facts=WSL_DRIVER,
    )


def wsl_old_driver() -> Hardware:
    """The Windows driver runs CUDA 12.4, torch was built for 13.2."""
    card = nvml_device(0, "NVIDIA GeForce RTX 4070", total=12282 * MIB, free=11000 * MIB, processes=None)
    return machine(
        (card,),
        torch=BLIND_TORCH,
        driver="551.86",
        cuda_version="12.4",
        cuda_error="CUDA initialization: The NVIDIA driver on your system is too old (found version 12040).",
        on=wsl_host(kernel="6.6.87.2-microsoft-standard-WSL2"),
        pci=(),
        driver_facts=WSL_DRIVER,
    )


def wsl_without_gpu() -> Hardware:
    """A CUDA build of torch, and Windows passes no card through."""
    nothing = {"device_nodes": (), "cuda_library": None}
    return machine(
        (), torch=BLIND_TORCH, nvml_error=NO_NVML, on=wsl_host(), pci=(), driver_facts={**WSL_DRIVER, **nothing}
    )


def docker_host(**facts: object) -> Host:
    small = {"shm_total_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}
    return host(
        **{
            "container": "docker",
            "file_descriptor_limit": 1048576,
            **small,
            "folders": folders(run={"file_system": "overlay"}),
            **facts,
        }
    )


def docker_without_gpus() -> Hardware:
    """Started without `--gpus`: the bus shows the card, the driver's files are not there."""
    return machine(
        (),
        torch=BLIND_TORCH,
        driver="580.95.05",
        module="open",
        nvml_error=NO_NVML,
        on=docker_host(),
        pci=pci_gpus((rtx3060(),)),
        driver_facts={"device_nodes": (), "cuda_library": None},
    )


def docker_nvml_lost() -> Hardware:
    """CUDA works, NVML does not: what a systemd reload does to a running container (A-ENV-06)."""
    card = nvml_device(0, "NVIDIA A10", total=23028 * MIB)
    return machine(
        (),
        torch=NEW_TORCH,
        driver="580.95.05",
        module="open",
        cuda_version="13.0",
        cuda=(cuda_device(0, card),),
        nvml_error="Unknown Error",
        on=docker_host(shm_total_bytes=16 * GIB, shm_free_bytes=16 * GIB),
        pci=pci_gpus((card,)),
        driver_facts={"device_nodes": nodes(1)},
    )


def contained(num_gpus: int, **facts: object) -> Hardware:
    gpus = tuple(nvml_device(index, "NVIDIA A10", total=23028 * MIB) for index in range(num_gpus))
    return machine(
        gpus, torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open", on=docker_host(**facts)
    )


def container_limits() -> Hardware:
    """32 GiB of the host's 1024, 64 MiB of shared memory, two cards (A-ENV-07, A-MEM-05)."""
    return contained(
        2,
        num_cores=4,
        ram_total_bytes=1024 * GIB,
        ram_limit_bytes=32 * GIB,
        ram_available_bytes=30 * GIB,
    )


def lxc_without_uvm() -> Hardware:
    """The card is passed through, /dev/nvidia-uvm is forgotten: NVML works and CUDA does not."""
    error = "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment"
    return with_3060(
        torch=BLIND_TORCH,
        on=host(container="lxc"),
        cuda_error=error,
        driver_facts={"device_nodes": ("/dev/nvidia0", "/dev/nvidiactl")},
    )


def alpine() -> Hardware:
    """An image with musl, for which there are no wheels."""
    return with_3060(
        torch=None, on=docker_host(libc="musl", shm_total_bytes=8 * GIB, shm_free_bytes=8 * GIB, folders=folders())
    )


def centos() -> Hardware:
    """CentOS 7, whose C library is older than what the wheels are built against."""
    return with_3060(torch=None, on=host(kernel="3.10.0-1160.el7.x86_64", libc="glibc 2.17"))


def full_disk() -> Hardware:
    full = {"free_bytes": 0, "writable": False, "error": "No space left on device"}
    where = folders(run=full, hub_cache=full, model_cache=full, packages=full)
    return with_3060(on=host(disk_free_bytes=0, folders=where))


def read_only_cache() -> Hardware:
    error = {"writable": False, "file_system": "nfs4", "error": "Read-only file system"}
    path = {"path": "/mnt/models/huggingface/hub"}
    return with_3060(
        on=host(folders=folders(hub_cache={**path, **error})), environment={"HF_HOME": "/mnt/models/huggingface"}
    )


def mirrored() -> Hardware:
    mirror = "https://hf-mirror.com"
    hub, *others = network()
    return with_3060(environment={"HF_ENDPOINT": mirror}, reached=(replace(hub, url=mirror, seconds=0.31), *others))


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "laptop_no_gpu": laptop,
    "cpu_8_cores_torch_2_6": eight_cores,
    "ci_no_gpu": ci,
    "server_no_gpu": server,
    "aarch64_no_gpu": aarch64,
    "wsl_rtx3070": wsl,
    "wsl_rtx4070_nvml": wsl_with_nvml,
    "wsl_rtx4070_old_driver": wsl_old_driver,
    "wsl_no_gpu": wsl_without_gpu,
    "docker_a10": lambda: contained(1),
    "docker_without_gpus": docker_without_gpus,
    "docker_nvml_lost": docker_nvml_lost,
    "k8s_64mib_shm_one_gpu": lambda: contained(1, container="kubernetes"),
    "k8s_64mib_shm_two_gpus": lambda: contained(2, container="kubernetes"),
    "container_32gib_two_a10": container_limits,
    "lxc_without_uvm": lxc_without_uvm,
    "docker_alpine": alpine,
    "rtx3060_centos_7": centos,
    "rtx3060_full_disk": full_disk,
    "rtx3060_read_only_cache": read_only_cache,
    "rtx3060_8gib_ram": lambda: with_3060(on=with_ram(8 * GIB, 5 * GIB, num_cores=4)),
    "rtx3060_latin1": lambda: with_3060(on=host(locale_encoding="iso-8859-1"), environment={"LC_ALL": "en_US"}),
    "hub_offline": lambda: with_3060(environment={"HF_HUB_OFFLINE": "1"}),
    "hub_mirror": mirrored,
    "hub_unreachable": lambda: with_3090(reached=network(hub="ConnectTimeout: no answer within 5 s")),
    "no_network": lambda: with_3090(
        reached=network(hub=UNREACHABLE, torch_index=UNREACHABLE, package_index=UNREACHABLE)
    ),
}
