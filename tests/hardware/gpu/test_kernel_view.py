"""NVIDIA GPUs as the operating system shows them, from folders that look like `/sys`, `/dev` and `/etc`."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.nvml import FakeNvml

from rl_compat.hardware.gpu.driver import read_driver
from rl_compat.hardware.gpu.kernel_view import (
    find_cuda_library,
    library_version,
    read_amd_gpus,
    read_device_nodes,
    read_kernel_module,
    read_pci_gpus,
    read_xids,
)
from rl_compat.hardware.types import PciGpu, Xid

ELF = b"\x7fELF" + (b"\x02" if struct.calcsize("P") == 8 else b"\x01")
OTHER_ELF = b"\x7fELF" + (b"\x01" if struct.calcsize("P") == 8 else b"\x02")


def pci(root: Path, bus: str, *, vendor: str, kind: str, device: str = "0x1b38", driver: str | None = None) -> None:
    folder = root / "sys/bus/pci/devices" / bus
    folder.mkdir(parents=True)
    for name, text in {"vendor": vendor, "class": kind, "device": device}.items():
        (folder / name).write_text(f"{text}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


def library(path: Path, head: bytes = ELF) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"rest")
    return str(path)


def test_graphics_cards_of_the_vendor_are_listed_with_their_driver(tmp_path: Path) -> None:
    """A-ENV-15: a card without a driver is seen all the same."""
    pci(tmp_path, "0000:02:00.0", vendor="0x10de", kind="0x030000", driver="nouveau")
    pci(tmp_path, "0000:01:00.0", vendor="0x10DE", kind="0x030200")
    pci(tmp_path, "0000:02:00.1", vendor="0x10de", kind="0x040300", driver="snd_hda_intel")
    pci(tmp_path, "0000:00:02.0", vendor="0x8086", kind="0x030000", driver="i915")
    assert read_pci_gpus(tmp_path) == (
        PciGpu(bus_id="0000:01:00.0", device_id="1b38"),
        PciGpu(bus_id="0000:02:00.0", device_id="1b38", kernel_driver="nouveau"),
    )


def test_a_bus_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert read_pci_gpus(tmp_path) is None


def test_device_nodes_are_those_that_cuda_opens(tmp_path: Path) -> None:
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null", "dxg"):
        (tmp_path / "dev" / name).touch()
    opened, closed = read_device_nodes(tmp_path)
    assert opened == ("/dev/dxg", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    assert closed == ()


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_a_node_of_another_user_is_closed(tmp_path: Path) -> None:
    node = tmp_path / "dev/nvidia0"
    node.parent.mkdir()
    node.touch(mode=0o600)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    program = (
        "import os; from pathlib import Path; from rl_compat.hardware.gpu.kernel_view import read_device_nodes; "
        f"os.setuid(65534); print(read_device_nodes(Path({str(tmp_path)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "((), ('/dev/nvidia0',))"


def test_the_library_path_comes_before_the_loaders_cache_and_the_usual_folders(tmp_path: Path) -> None:
    usual = library(tmp_path / "usr/lib64/libcuda.so.1")
    cached = library(tmp_path / "opt/driver/libcuda.so.1")
    named = library(tmp_path / "stubs/libcuda.so.1")
    assert find_cuda_library({}, tmp_path) == usual
    cache = tmp_path / "etc/ld.so.cache"
    cache.parent.mkdir()
    cache.write_bytes(b"glibc-ld.so.cache1.1\x02\0libcuda.so.1\0/opt/driver/libcuda.so.1\0/lib/libm.so.6\0")
    assert find_cuda_library({}, tmp_path) == cached
    assert find_cuda_library({"LD_LIBRARY_PATH": f":/nowhere:{tmp_path}/stubs"}, tmp_path) == named


def test_a_library_of_another_word_size_does_not_count(tmp_path: Path) -> None:
    library(tmp_path / "usr/lib/libcuda.so.1", OTHER_ELF)
    assert find_cuda_library({}, tmp_path) is None


def test_the_library_tells_the_driver_it_belongs_to(tmp_path: Path) -> None:
    for folder, name, version in (
        ("lib", "libcuda.so.590.48.01", "590.48.01"),
        ("wsl", "libcuda.so.1.1", None),
        ("compat", "libcuda.so.575.57.08", None),
    ):
        real = Path(library(tmp_path / folder / name))
        link = real.with_name("libcuda.so.1")
        link.symlink_to(real.name)
        assert library_version(str(link)) == version
    assert library_version(library(tmp_path / "copy/libcuda.so.1")) is None
    assert library_version(None) is None


def test_a_driver_that_does_not_answer_has_the_version_of_its_library(tmp_path: Path) -> None:
    """An R590 driver ignores a Tesla P40: no module is loaded, and NVML says only that the driver is not."""
    real = Path(library(tmp_path / "usr/lib64/libcuda.so.590.48.01"))
    real.with_name("libcuda.so.1").symlink_to(real.name)
    for missing, version in ((FakeNvml(error="Driver Not Loaded"), "590.48.01"), (FakeNvml(), "535.274.02")):
        driver = read_driver({}, root=tmp_path, library=missing, programs=[], libraries=[]).driver
        assert driver.version == version


def with_module(root: Path, text: str) -> Path:
    """A root whose kernel has a module of the driver loaded."""
    version = root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\nGCC version: 1",
            ("580.159.04", "open"),
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.274.02  Thu", ("535.274.02", "proprietary")),
        ("", (None, None)),
    ],
)
def test_the_kernel_module_says_its_version_and_flavour(
    tmp_path: Path, text: str, expected: tuple[object, ...]
) -> None:
    assert read_kernel_module(with_module(tmp_path, text)) == expected


def test_without_a_kernel_module_nothing_is_known_of_it(tmp_path: Path) -> None:
    assert read_kernel_module(tmp_path) == (None, None)


def test_the_librarys_version_and_the_modules_are_kept_apart(tmp_path: Path) -> None:
    with_module(tmp_path, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.86  Tue\n")
    driver = read_driver({}, root=tmp_path, library=FakeNvml(driver="535.274.02")).driver
    assert (driver.version, driver.module_version, driver.kernel_module) == ("535.274.02", "470.86", "proprietary")
    refusing = FakeNvml(error="Driver Not Loaded")
    driver = read_driver({}, root=tmp_path, library=refusing, programs=[], libraries=[]).driver
    assert (driver.version, driver.module_version) == ("470.86", "470.86")


def test_the_errors_of_the_driver_are_read_from_the_kernel_log_once_each(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(
        "6,1,100,-;usb 1-1: new device\n"
        "3,2,200,-;NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.\n"
        "3,3,300,-;NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.\n"
        "3,4,400,-;NVRM: Xid (PCI:0000:01:00): 31, pid=99, name=python, MMU Fault\n"
    )

    assert read_xids(tmp_path) == (Xid(bus_id="0000:65:00", number=79), Xid(bus_id="0000:01:00", number=31))
    assert read_xids(tmp_path / "elsewhere") is None


def test_amd_cards_on_the_bus_are_named_and_other_devices_are_not(tmp_path: Path) -> None:
    for slot, vendor, kind in (
        ("03", "0x1002", "0x038000"),
        ("04", "0x1002", "0x040300"),
        ("05", "0x8086", "0x030000"),
    ):
        folder = tmp_path / f"sys/bus/pci/devices/0000:{slot}:00.0"
        folder.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", kind), ("device", "0x740f")):
            (folder / name).write_text(text + "\n")

    assert read_amd_gpus(tmp_path) == ("AMD GPU 740f",)
