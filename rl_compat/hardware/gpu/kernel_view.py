"""NVIDIA GPUs as the operating system shows them: the PCI bus, device nodes, the kernel module, libcuda."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl_compat.hardware.system.text_files import read_text
from rl_compat.hardware.types import PciGpu, Xid

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"VGA controller and 3D controller"
AMD_VENDOR = "0x1002"
AMD_CLASSES = (*DISPLAY_CLASSES, "0x0380", "0x1200")
"also other display controllers and processing accelerators, such as Instinct cards"
NODES = re.compile(r"nvidia[0-9]+|nvidiactl|nvidia-uvm|dxg")
"what CUDA opens; `dxg` stands for all of them under WSL"
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
CUDA_LIBRARY = "libcuda.so.1"
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "run/opengl-driver/lib",
)


def read_amd_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """AMD's GPUs by their PCI device ids, `AMD GPU 740f`, in the order of the bus."""
    found = _pci_devices(root, AMD_VENDOR, AMD_CLASSES) or ()
    return tuple(f"AMD GPU {_lower(folder / 'device').removeprefix('0x')}" for folder in found)


def _pci_devices(root: Path, vendor: str, classes: tuple[str, ...]) -> list[Path] | None:
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    ours = [folder for folder in folders if _lower(folder / "vendor") == vendor]
    return [folder for folder in ours if _lower(folder / "class").startswith(classes)]


def read_pci_gpus(root: Path = Path("/")) -> tuple[PciGpu, ...] | None:
    """NVIDIA's display controllers in the order of the bus; None if the bus cannot be read."""
    folders = _pci_devices(root, NVIDIA_VENDOR, DISPLAY_CLASSES)
    if folders is None:
        return None
    return tuple(
        PciGpu(
            bus_id=folder.name,
            device_id=_lower(folder / "device").removeprefix("0x"),
            kernel_driver=_bound_driver(folder / "driver"),
        )
        for folder in folders
    )


def read_device_nodes(root: Path = Path("/")) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The device nodes that CUDA needs: those that this process can read and write, and those that it cannot."""
    try:
        names = sorted(path.name for path in (root / "dev").iterdir())
    except OSError:
        return None, ()
    opened: list[str] = []
    closed: list[str] = []
    for name in names:
        if NODES.fullmatch(name):
            allowed = os.access(root / "dev" / name, os.R_OK | os.W_OK)
            (opened if allowed else closed).append(f"/dev/{name}")
    return tuple(opened), tuple(closed)


def read_kernel_module(root: Path = Path("/")) -> tuple[str | None, str | None]:
    """Driver version and `open` or `proprietary` of the kernel module that is loaded; None if none is."""
    lines = read_text(root / "proc/driver/nvidia/version").splitlines()
    line = next((line for line in lines if "NVRM version" in line), None)
    if line is None:
        return None, None
    match = re.search(r"\s([0-9]{3,}(?:\.[0-9]+)+)\s", line + " ")
    return match.group(1) if match else None, "open" if "Open Kernel Module" in line else "proprietary"


def read_xids(root: Path = Path("/")) -> tuple[Xid, ...] | None:
    """The driver's errors in the kernel log, each once; None if this user may not read it."""
    try:
        log = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records: list[bytes] = []
    try:
        while record := os.read(log, 1 << 16):
            records.append(record)
    except OSError:  # the end of the log: the next record does not exist yet
        pass
    finally:
        os.close(log)
    found = XID.findall(b"\n".join(records).decode(errors="replace"))
    return tuple(dict.fromkeys(Xid(bus_id=bus, number=int(number)) for bus, number in found))


def find_cuda_library(environment: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Where the loader would find the driver's `libcuda.so.1`. It is not loaded."""
    for path in _library_candidates(environment, root):
        if _is_native(path):
            return str(path)
    return None


def library_version(library: str | None) -> str | None:
    """The driver version of a `libcuda.so.1`, from the name of the file it links to: `libcuda.so.590.48.01`.

    None if the name has no version, and for a compat folder, whose library is of another release than the driver.
    """
    target = os.path.realpath(library) if library and "compat" not in library else ""
    match = re.search(r"libcuda\.so\.([0-9]{3}(?:\.[0-9]+)+)$", target)
    return match.group(1) if match else None


def _library_candidates(environment: Mapping[str, str], root: Path) -> Iterator[Path]:
    """LD_LIBRARY_PATH, the loader's cache, then the usual folders."""
    for folder in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        yield Path(folder) / CUDA_LIBRARY
    for name in _cached(root / "etc/ld.so.cache"):
        yield root / name.lstrip("/")
    for name in LIBRARY_FOLDERS:
        yield root / name / CUDA_LIBRARY


def _cached(cache: Path) -> list[str]:
    """Paths in the loader's cache, whose strings end with a zero byte."""
    try:
        content = cache.read_bytes()
    except OSError:
        return []
    pattern = rb"\0(/[^\0]*/" + re.escape(CUDA_LIBRARY.encode()) + rb")(?=\0)"
    return [os.fsdecode(path) for path in re.findall(pattern, content)]


def _is_native(path: Path) -> bool:
    """Whether a file is a shared library with the word size of this Python."""
    try:
        with path.open("rb") as file:
            head = file.read(5)
    except OSError:
        return False
    return head == b"\x7fELF" + (b"\x02" if struct.calcsize("P") == 8 else b"\x01")


def _lower(path: Path) -> str:
    return read_text(path).strip().lower()


def _bound_driver(link: Path) -> str | None:
    try:
        return link.readlink().name
    except OSError:
        return None
