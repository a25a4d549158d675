"""The driver's view of the GPUs, through NVML."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from itertools import combinations
from typing import Any

from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlReading, NvmlSlice
from rl_compat.hardware.types import Driver, Link, MemoryHealth, Process

NOT_INSTALLED = "`nvidia-ml-py` is not installed"
LIBRARY_NOT_FOUND = "NVML Shared Library Not Found"
UNCORRECTED, VOLATILE = 1, 0
"NVML's numbers for a kind of ECC error, and for the count since the driver was loaded"
RETIREMENT_CAUSES = (0, 1)
"several corrected errors, one uncorrected error"
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
NVLINK_CAPABILITY = 2
"NVML_P2P_CAPS_INDEX_NVLINK"
ANCESTORS = {
    0: "pcie_switch",
    10: "pcie_switch",
    20: "pcie_switch",
    30: "pcie_host_bridge",
    40: "numa_node",
    50: "system",
}
"by nvmlGpuTopologyLevel_t: on one board, one switch, several switches, host bridge, node, system"


def read_nvml(library: Any | None = None) -> NvmlReading:
    """GPUs, driver and other processes; an unusable NVML becomes `driver.nvml_error`.

    `library` is a module with the functions of `pynvml`; by default the installed one.
    """
    try:
        nvml = library or import_module("pynvml")
    except ImportError:
        return unanswered(NOT_INSTALLED)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unanswered(str(error))
    try:
        return _read_all(nvml)
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def unanswered(error: str) -> NvmlReading:
    """The reading of a driver that does not answer."""
    return NvmlReading(driver=Driver(nvml_error=error))


def cuda_version_text(number: int) -> str:
    """NVML's and CUDA's encoding of a version: 11040 is `11.4`."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _read_all(nvml: Any) -> NvmlReading:
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    driver = Driver(
        version=_string(_ask(nvml, nvml.nvmlSystemGetDriverVersion)),
        cuda_version=cuda_version_text(cuda) if cuda else None,
    )
    devices: list[NvmlDevice] = []
    handles: dict[int, Any] = {}
    warnings: list[str] = []
    for index in range(_ask(nvml, nvml.nvmlDeviceGetCount) or 0):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            devices.append(_read_device(nvml, handle, index))
            handles[index] = handle
        except nvml.NVMLError as error:
            warnings.append(f"NVML cannot read GPU {index}: {error}")
    links = _read_links(nvml, handles)
    return NvmlReading(devices=tuple(devices), links=links, driver=driver, warnings=tuple(warnings))


def _read_device(nvml: Any, handle: Any, index: int) -> NvmlDevice:
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    bar1 = _ask(nvml, nvml.nvmlDeviceGetBAR1MemoryInfo, handle)
    mode = _ask(nvml, nvml.nvmlDeviceGetComputeMode, handle)
    mig_mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    mig_enabled = bool(mig_mode and mig_mode[0])
    return NvmlDevice(
        index=index,
        name=_string(nvml.nvmlDeviceGetName(handle)) or "unknown",
        compute_capability=(capability[0], capability[1]) if capability else None,
        uuid=_string(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)),
        pci_bus_id=_string(pci.busId) if pci else None,
        memory_total_bytes=memory.total if memory else None,
        memory_free_bytes=memory.free if memory else None,
        processes=_read_processes(nvml, handle),
        mig_enabled=mig_enabled,
        slices=_read_slices(nvml, handle) if mig_enabled else (),
        compute_mode=None if mode is None else COMPUTE_MODES.get(mode),
        pcie_width=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or None,
        pcie_width_max=_ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or None,
        bar1_total_bytes=bar1.bar1Total if bar1 else None,
        memory_health=_read_health(nvml, handle),
    )


def _read_health(nvml: Any, handle: Any) -> MemoryHealth | None:
    """Cards before Ampere retire pages, later ones replace rows. None for a card without ECC memory."""
    errors = _ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, UNCORRECTED, VOLATILE)
    pages = [_ask(nvml, nvml.nvmlDeviceGetRetiredPages, handle, cause) for cause in RETIREMENT_CAUSES]
    rows = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    if errors is None and rows is None and None in pages:
        return None
    corrected, uncorrected, pending, failed = rows or (0, 0, 0, 0)
    return MemoryHealth(
        uncorrected_errors=errors,
        retired_pages=corrected + uncorrected + sum(len(found or ()) for found in pages),
        repair_pending=bool(pending or _ask(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        repair_failed=bool(failed),
    )


def _read_processes(nvml: Any, handle: Any) -> tuple[Process, ...] | None:
    running = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if running is None:
        return None
    drawing = _ask(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
    by_pid = {process.pid: process for process in [*drawing, *running] if process.pid != os.getpid()}
    return tuple(
        Process(
            pid=pid,
            name=_string(_ask(nvml, nvml.nvmlSystemGetProcessName, pid)),
            used_bytes=process.usedGpuMemory or None,
        )
        for pid, process in sorted(by_pid.items())
    )


def _read_slices(nvml: Any, handle: Any) -> tuple[NvmlSlice, ...]:
    slices = []
    for position in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        uuid = _string(_ask(nvml, nvml.nvmlDeviceGetUUID, mig)) if mig is not None else None
        if uuid is None:
            continue
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, mig)
        attributes = _ask(nvml, nvml.nvmlDeviceGetAttributes, mig)
        slices.append(
            NvmlSlice(
                uuid=uuid,
                profile=mig_profile(_string(_ask(nvml, nvml.nvmlDeviceGetName, mig)) or ""),
                memory_total_bytes=memory.total if memory else None,
                memory_free_bytes=memory.free if memory else None,
                num_multiprocessors=attributes.multiprocessorCount if attributes else None,
            )
        )
    return tuple(slices)


def _read_links(nvml: Any, handles: Mapping[int, Any]) -> tuple[Link, ...]:
    """The link of each pair of GPUs that the driver reports, by NVML index."""
    return tuple(
        Link(first=first, second=second, kind=kind)
        for first, second in combinations(sorted(handles), 2)
        if (kind := _link_kind(nvml, handles[first], handles[second])) is not None
    )


def _link_kind(nvml: Any, first: Any, second: Any) -> str | None:
    if _ask(nvml, nvml.nvmlDeviceGetP2PStatus, first, second, NVLINK_CAPABILITY) == 0:
        return "nvlink"
    level = _ask(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    return None if level is None else ANCESTORS.get(level)


def mig_profile(name: str) -> str | None:
    """`1g.5gb` from `NVIDIA A100-SXM4-40GB MIG 1g.5gb`, None from the name of a whole GPU."""
    match = re.search(r"\bMIG\s+(\S+)", name)
    return match.group(1) if match else None


def _ask(nvml: Any, function: Any, *arguments: Any) -> Any | None:
    """The result, or None if this driver or card does not support the query."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _string(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
