"""Several cards, alike and mixed, slices of one, and what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

from recordings.parts import (
    BLIND_TORCH,
    NEW_TORCH,
    OLD_TORCH,
    cuda_device,
    folders,
    host,
    machine,
    nvml_device,
    p40,
    pci_gpus,
    rtx3090,
    rtx4090,
    rtx5090,
    uuid,
)

from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlSlice
from rl_compat.hardware.types import Hardware, Link, Process, TorchBuild
from rl_compat.units import GIB, MIB

SERVER = {"file_descriptor_limit": 65536}


def linked(num_gpus: int, kind: str) -> tuple[Link, ...]:
    """The same kind of link between any two."""
    pairs = combinations(range(num_gpus), 2)
    return tuple(Link(first=first, second=second, kind=kind) for first, second in pairs)


def group(
    gpus: tuple[NvmlDevice, ...],
    link: str = "pcie_host_bridge",
    *,
    peer_access: bool = False,
    torch: TorchBuild = NEW_TORCH,
    module: str = "open",
    order: tuple[int, ...] | None = None,
    packages: Mapping[str, str | None] | None = None,
) -> Hardware:
    return machine(
        gpus,
        torch=torch,
        driver="580.95.05",
        cuda_version="13.0",
        module=module,
        order=order,
        links=linked(len(gpus), link),
        peer_access=peer_access,
        packages=packages,
        on=host(**SERVER),
    )


def h100_eight() -> Hardware:
    gpus = tuple(nvml_device(index, "NVIDIA H100 80GB HBM3", total=81559 * MIB) for index in range(8))
    big = host(
        cpu_name="Intel(R) Xeon(R) Platinum 8480C",
        num_cores=224,
        ram_total_bytes=2048 * GIB,
        ram_limit_bytes=2048 * GIB,
        ram_available_bytes=1980 * GIB,
        shm_total_bytes=1024 * GIB,
        shm_free_bytes=1024 * GIB,
        disk_free_bytes=20000 * GIB,
        folders=folders(20000 * GIB),
        file_descriptor_limit=1048576,
        cpu_features=("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "f16c", "fma"),
    )
    return machine(
        gpus,
        torch=NEW_TORCH,
        driver="580.95.05",
        cuda_version="13.0",
        module="open",
        on=big,
        links=linked(8, "nvlink"),
        peer_access=True,
    )


def mixed_order() -> Hardware:
    """nvidia-smi's first card is the small one, CUDA's the big one (A-ENV-05)."""
    display = nvml_device(0, "NVIDIA T400 4GB", total=4096 * MIB, compute_capability=(7, 5))
    return group((display, rtx4090(1)), order=(1, 0))


def mixed_ages() -> Hardware:
    new = nvml_device(1, "NVIDIA A100-PCIE-40GB", total=40960 * MIB)
    return group((p40(), new), torch=OLD_TORCH, module="proprietary", order=(1, 0))


def mixed_flash() -> Hardware:
    """flash-attn with a card that cannot run it (A-ENV-11, variant)."""
    gpus = (nvml_device(0, "NVIDIA A100-PCIE-40GB", total=40960 * MIB), nvml_device(1, "Tesla T4", total=15360 * MIB))
    return group(gpus, packages={"flash-attn": "2.6.3"})


def mixed_modules() -> Hardware:
    """No kernel module serves both: the open one, which the RTX 5090 needs, leaves the P40 out."""
    old, new = p40(), rtx5090(1)
    left_out = replace(pci_gpus((old,))[0], kernel_driver=None)
    return machine(
        (replace(new, index=0),),
        torch=NEW_TORCH,
        driver="580.95.05",
        cuda_version="13.0",
        module="open",
        pci=(left_out, *pci_gpus((new,))),
    )


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


def mig_without_slices() -> Hardware:
    gpu = nvml_device(0, "NVIDIA A100-SXM4-40GB", total=40960 * MIB, mig_enabled=True)
    return machine((gpu,), torch=BLIND_TORCH, driver="580.95.05", cuda_version="13.0", module="open")


def shared_card() -> Hardware:
    """Somebody else holds most of the card (A-ENV-14)."""
    foreign = Process(pid=4321, name="python", used_bytes=int(20.5 * GIB))
    gpu = rtx3090(free=3 * GIB, processes=(foreign,))
    return machine((gpu,), torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open")


def prohibited() -> Hardware:
    gpu = rtx3090(compute_mode="prohibited")
    return machine((gpu,), torch=BLIND_TORCH, driver="580.95.05", cuda_version="13.0", module="open")


def exclusive_and_held() -> Hardware:
    """Exclusive mode: the process that has the card keeps everyone else out."""
    foreign = Process(pid=977, name="python", used_bytes=9 * GIB)
    gpu = rtx3090(free=15 * GIB, processes=(foreign,), compute_mode="exclusive_process")
    error = "cuda:0: AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    return machine(
        (gpu,), torch=NEW_TORCH, driver="580.95.05", cuda_version="13.0", module="open", cuda=(), cuda_error=error
    )


def riser() -> Hardware:
    """One lane of sixteen, as on a board that was built for mining."""
    gpu = replace(p40(), pcie_width=1)
    return machine((gpu,), torch=OLD_TORCH, driver="580.95.05", cuda_version="13.0", module="proprietary")


def visible(value: str, picked: tuple[int, ...]) -> Hardware:
    """Two RTX 3090 of which CUDA, told so, shows those."""
    gpus = (rtx3090(0), rtx3090(1))
    return machine(
        gpus,
        torch=NEW_TORCH if picked else BLIND_TORCH,
        driver="580.95.05",
        cuda_version="13.0",
        module="open",
        cuda=tuple(cuda_device(place, gpus[index]) for place, index in enumerate(picked)),
        environment={"CUDA_VISIBLE_DEVICES": value},
        on=host(**SERVER),
    )


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "p40_two": lambda: group((p40(0), p40(1)), peer_access=True, torch=OLD_TORCH, module="proprietary"),
    "v100_four_nvlink": lambda: group(
        tuple(nvml_device(index, "Tesla V100-SXM2-32GB", total=32768 * MIB) for index in range(4)),
        "nvlink",
        peer_access=True,
        torch=OLD_TORCH,
        module="proprietary",
    ),
    "rtx4090_two": lambda: group((rtx4090(0), rtx4090(1))),
    "h100_eight": h100_eight,
    "mixed_t400_rtx4090": mixed_order,
    "mixed_p40_a100": mixed_ages,
    "mixed_a100_t4_flash_attn": mixed_flash,
    "mixed_p40_rtx5090": mixed_modules,
    "a100_mig_3g20gb": mig_slice,
    "a100_mig_without_slices": mig_without_slices,
    "rtx3090_shared": shared_card,
    "rtx3090_prohibited": prohibited,
    "rtx3090_exclusive_and_held": exclusive_and_held,
    "p40_one_lane": riser,
    "visible_by_uuid": lambda: visible(f"GPU-{uuid(1)}", (1,)),
    "visible_by_uuid_prefix": lambda: visible("GPU-2111", (1,)),
    "visible_second": lambda: visible("1", (1,)),
    "visible_garbage": lambda: visible("cuda:0", ()),
    "visible_empty": lambda: visible("", ()),
    "visible_out_of_range": lambda: visible("2", ()),
    "visible_partly_out_of_range": lambda: visible("0,5", (0,)),
}
