"""Drivers that are missing, too old, too new, of the wrong kind or closed to this user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recordings.parts import (
    BLIND_TORCH,
    CU124,
    OLD_TORCH,
    machine,
    nodes,
    p40,
    pci_gpus,
    rtx3060,
    rtx3090,
    rtx4090,
    rtx5090,
    with_3060,
)

from rl_compat.hardware.gpu.readings import NvmlDevice
from rl_compat.hardware.types import Hardware, TorchBuild

NO_NVML = "NVML Shared Library Not Found"
NOT_LOADED = "Driver Not Loaded"


def unserved(
    card: NvmlDevice, *, by: str | None, nvml_error: str | None, torch: TorchBuild = BLIND_TORCH, **facts: object
) -> Hardware:
    """A card on the bus that NVML and CUDA do not show."""
    return machine(
        (),
        torch=torch,
        nvml_error=nvml_error,
        pci=pci_gpus((card,), by),
        driver_facts={"device_nodes": (), **facts},
    )


def old_driver() -> Hardware:
    """Driver 470 and a torch built for CUDA 12 (A-ENV-09)."""
    torch = TorchBuild(version="2.6.0+cu124", cuda="12.4", arch_list=CU124)
    return _too_old(torch)


def old_driver_and_torch() -> Hardware:
    """The same with the torch of its time, which is also older than what is supported (A-ENV-09 as reported)."""
    return _too_old(TorchBuild(version="2.5.1+cu121", cuda="12.1", arch_list=CU124))


def _too_old(torch: TorchBuild) -> Hardware:
    error = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
    return machine(
        (rtx3090(),), torch=torch, driver="470.86", cuda_version="11.4", module="proprietary", cuda_error=error
    )


def too_old_for_13() -> Hardware:
    """Driver 550 and the torch that the package index gives."""
    error = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."
    return machine(
        (rtx4090(),),
        torch=BLIND_TORCH,
        driver="550.163.01",
        cuda_version="12.4",
        module="open",
        cuda_error=error,
    )


def mismatch() -> Hardware:
    """The driver was updated and the old kernel module is still loaded."""
    error = (
        "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        "calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display "
        "driver / cuda driver combination"
    )
    return machine(
        (),
        torch=BLIND_TORCH,
        nvml_error="Driver/library version mismatch",
        cuda_error=error,
        pci=pci_gpus((rtx3090(),)),
        driver_facts={
            "version": "580.95.05",
            "module_version": "575.57.08",
            "kernel_module": "open",
            "device_nodes": nodes(1),
            "cuda_library": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        },
    )


def no_permission() -> Hardware:
    """The user may not open the device files."""
    return machine(
        (),
        torch=BLIND_TORCH,
        nvml_error="Insufficient Permissions",
        cuda_error="CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 304: OS call failed or "
        "operation not supported on this OS",
        pci=pci_gpus((rtx3060(),)),
        driver_facts={
            "version": "580.95.05",
            "module_version": "580.95.05",
            "kernel_module": "open",
            "device_nodes": (),
            "closed_device_nodes": nodes(1),
            "cuda_library": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        },
    )


def nvml_package_missing() -> Hardware:
    """nvidia-ml-py is not installed, and nvidia-smi answers in its place."""
    return with_3060(source="nvidia-smi", packages={"nvidia-ml-py": None})


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "rtx3060_no_driver": lambda: unserved(rtx3060(), by=None, nvml_error=NO_NVML),
    "rtx3060_nouveau": lambda: unserved(rtx3060(), by="nouveau", nvml_error=NO_NVML),
    "rtx3090_vfio": lambda: unserved(
        rtx3090(), by="vfio-pci", nvml_error=NOT_LOADED, version="580.95.05", kernel_module=None
    ),
    "p40_r590_driver": lambda: unserved(
        p40(),
        by=None,
        nvml_error=NOT_LOADED,
        torch=replace(OLD_TORCH, cuda_available=False),
        version="590.48.01",
        cuda_library="/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ),
    "p40_driver_not_loaded": lambda: unserved(
        p40(),
        by=None,
        nvml_error=NOT_LOADED,
        torch=replace(OLD_TORCH, cuda_available=False),
        cuda_library="/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ),
    "p40_open_module": lambda: unserved(
        p40(),
        by=None,
        nvml_error=NOT_LOADED,
        torch=replace(OLD_TORCH, cuda_available=False),
        version="580.95.05",
        module_version="580.95.05",
        kernel_module="open",
        cuda_library="/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ),
    "rtx5090_proprietary_module": lambda: unserved(
        rtx5090(),
        by="nvidia",
        nvml_error=None,
        version="580.95.05",
        module_version="580.95.05",
        kernel_module="proprietary",
        cuda_version="13.0",
        device_nodes=nodes(1),
        cuda_library="/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ),
    "rtx3090_old_driver": old_driver,
    "rtx3090_old_driver_torch_2_5": old_driver_and_torch,
    "rtx4090_driver_550": too_old_for_13,
    "rtx3090_driver_library_mismatch": mismatch,
    "rtx3060_no_permission": no_permission,
    "rtx3060_nvml_package_missing": nvml_package_missing,
}
