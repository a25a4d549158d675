"""The driver's library through ctypes, against a library compiled here, and the records against pynvml's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.nvml import FakeNvml

from rl_compat.hardware.gpu import driver_library
from rl_compat.hardware.gpu.driver import read_driver, read_without_packages
from rl_compat.hardware.gpu.readings import NvmlReading
from rl_compat.hardware.types import Link, Process

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SOURCE = r"""
#include <string.h>
#include <unistd.h>
typedef unsigned int u32; typedef unsigned long long u64;
struct pci { char legacy[16]; u32 numbers[5]; char bus[32]; };
struct memory { u64 total, free, used; };
struct process { u32 pid; u64 used; u32 gpu, compute; };
struct attributes { u32 sm, others[7]; u64 mib; };
static char gpus[2], slice;
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlInit_v2(void) { if (HANG) sleep(600); return FAULT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, u32 size) { strncpy(text, "535.274.02", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12020; return 0; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) { *handle = &gpus[index]; return 0; }
int nvmlDeviceGetName(void *gpu, char *text, u32 size) {
  strncpy(text, gpu == &slice ? "A100 MIG 1g.5gb" : gpu == gpus ? "Tesla P40" : "NVIDIA A100-SXM4-40GB", size);
  return 0;
}
int nvmlDeviceGetUUID(void *gpu, char *text, u32 size) {
  strncpy(text, gpu == &slice ? "MIG-1" : gpu == gpus ? "GPU-0" : "GPU-1", size);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *info) {
  memset(info, 0xff, sizeof *info); strcpy(info->bus, "00000000:01:00.0"); return 0;
}
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *info) {
  info->total = gpu == &slice ? 5 : 40; info->free = 3; return 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void *gpu, struct memory *info) { info->total = 256; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
  *major = gpu == gpus ? 6 : 8; *minor = gpu == gpus ? 1 : 0; return 0;
}
int nvmlDeviceGetComputeMode(void *gpu, u32 *mode) { *mode = 3; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, u32 *width) { *width = 4; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, u32 *width) { *width = 16; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, u32 *level) { *level = 30; return 0; }
int nvmlDeviceGetMigMode(void *gpu, u32 *now, u32 *then) { *now = *then = gpu == gpus + 1; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *gpu, u32 *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, u32 index, void **handle) {
  *handle = &slice; return index == 0 ? 0 : 6;
}
int nvmlDeviceGetAttributes_v2(void *gpu, struct attributes *found) { found->sm = 14; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, u32 *count, struct process *found) {
  if (gpu != gpus) { *count = 0; return 0; }
  if (*count < 2) { *count = 2; return 7; }
  found[0] = (struct process){11, 700, 0, 0}; found[1] = (struct process){12, ~0ull, 0, 0};
  *count = 2; return 0;
}
int nvmlSystemGetProcessName(u32 pid, char *text, u32 size) {
  strncpy(text, "python", size); return pid == 11 ? 0 : 6;
}
"""


def compiled(folder: Path, *, fault: int = 0, hang: int = 0) -> str:
    assert COMPILER is not None
    source, library = folder / "fake.c", folder / "libnvidia-ml.so.1"
    source.write_text(SOURCE)
    options = ["-shared", "-fPIC", f"-DFAULT={fault}", f"-DHANG={hang}"]
    subprocess.run([COMPILER, *options, "-o", str(library), str(source)], check=True, capture_output=True)
    return str(library)


def ask(library: str, *, timeout_seconds: float = 10.0) -> NvmlReading:
    return read_without_packages(
        programs=[],
        libraries=["/nonexistent.so", library],
        timeout_seconds=timeout_seconds,
    )


@needs_compiler
def test_the_library_gives_what_the_package_gives(tmp_path: Path) -> None:
    reading = ask(compiled(tmp_path))
    first, second = reading.devices
    assert (reading.driver.version, reading.driver.cuda_version, reading.source) == ("535.274.02", "12.2", "nvml")
    assert (first.name, first.uuid, first.compute_capability) == ("Tesla P40", "GPU-0", (6, 1))
    assert (first.pci_bus_id, first.memory_total_bytes, first.memory_free_bytes) == ("00000000:01:00.0", 40, 3)
    assert (first.compute_mode, first.pcie_width, first.pcie_width_max) == ("exclusive_process", 4, 16)
    assert first.bar1_total_bytes == 256
    assert first.processes == (Process(pid=11, name="python", used_bytes=700), Process(pid=12))
    assert (second.mig_enabled, len(second.slices), second.processes) == (True, 1, ())
    part = second.slices[0]
    assert (part.uuid, part.profile, part.memory_total_bytes, part.num_multiprocessors) == ("MIG-1", "1g.5gb", 5, 14)
    assert reading.links == (Link(first=0, second=1, kind="pcie_host_bridge"),)


@needs_compiler
def test_a_library_that_refuses_says_why(tmp_path: Path) -> None:
    assert ask(compiled(tmp_path, fault=18)).driver.nvml_error == "Driver/library version mismatch"


@needs_compiler
def test_a_library_that_hangs_is_given_up_on(tmp_path: Path) -> None:
    reading = ask(compiled(tmp_path, hang=1), timeout_seconds=0.3)
    assert reading.driver.nvml_error == "NVML gave no answer within 0.3 s"


@needs_compiler
def test_slices_come_from_the_library_where_nvidia_smi_only_says_that_there_are_some(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    row = "0, NVIDIA A100-SXM4-40GB, GPU-1, 535.274.02, 0:1:0.0, 40960, 40000, 8.0, Default, 16, 16, Enabled"
    smi.write_text(f"#!/bin/sh\necho '{row}'\n")
    smi.chmod(0o755)
    library = compiled(tmp_path)
    assert read_without_packages(programs=[str(smi)], libraries=[library]).source == "nvml"
    assert read_without_packages(programs=[str(smi)], libraries=[]).source == "nvidia-smi"


@needs_compiler
def test_a_package_without_its_library_is_helped_out(tmp_path: Path) -> None:
    missing = FakeNvml(error="NVML Shared Library Not Found")
    reading = read_driver({}, root=tmp_path, library=missing, programs=[], libraries=[compiled(tmp_path)])
    assert [device.name for device in reading.devices] == ["Tesla P40", "NVIDIA A100-SXM4-40GB"]
    refusing = FakeNvml(error="Driver/library version mismatch")
    reading = read_driver({}, root=tmp_path, library=refusing, programs=[], libraries=[compiled(tmp_path)])
    assert (reading.devices, reading.driver.nvml_error) == ((), "Driver/library version mismatch")


def test_the_records_have_the_packages_layout() -> None:
    import pynvml

    pairs = {
        driver_library.MemoryInfo: pynvml.c_nvmlMemory_t,
        driver_library.Bar1Info: pynvml.c_nvmlBAR1Memory_t,
        driver_library.PciInfo: pynvml.nvmlPciInfo_t,
        driver_library.SliceAttributes: pynvml.c_nvmlDeviceAttributes,
        driver_library.RunningProcess: pynvml.c_nvmlProcessInfo_v2_t,
    }
    for ours, theirs in pairs.items():
        assert ctypes.sizeof(ours) == ctypes.sizeof(theirs), ours
    assert driver_library.PciInfo.busId.offset == pynvml.nvmlPciInfo_t.busId.offset
    assert driver_library.RunningProcess.bytes.offset == pynvml.c_nvmlProcessInfo_v2_t.usedGpuMemory.offset


def test_every_function_is_one_of_the_packages() -> None:
    import pynvml

    ours = {*vars(driver_library.DriverLibrary), *driver_library.FUNCTIONS}
    assert [name for name in ours if name.startswith("nvml") and not hasattr(pynvml, name)] == []
