"""Cards and driver without any package: nvidia-smi as it prints, fails and hangs, then the driver's library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.nvml import FakeNvml

from rl_compat.hardware.gpu.driver import read_driver, read_without_packages
from rl_compat.hardware.gpu.join import JoinedDevices, join
from rl_compat.hardware.gpu.nvidia_smi import FIELDS, parse_smi
from rl_compat.hardware.gpu.readings import NvmlReading, TorchReading
from rl_compat.units import MIB

TWO = """0, NVIDIA T400 4GB, GPU-1111-2222, 580.95.05, 00000000:01:00.0, 4096, 3900, 7.5, Default, 16, 16, [N/A]
1, NVIDIA GeForce RTX 4090, GPU-2111-2222, 580.95.05, 0:02:00.0, 24564, 20000, 8.9, Exclusive_Process, 4, 16, [N/A]
"""
OLD = "0, {name}, GPU-1, 470.86, 00000000:01:00.0, 22919, 22919, {capability}, Default, 16, 16, [N/A]\n"


def parsed(text: str) -> NvmlReading:
    return parse_smi(text)


def seen(text: str, **environment: str) -> JoinedDevices:
    return join(parsed(text), TorchReading(), environment)


def names(text: str, **environment: str) -> list[str]:
    return [device.name for device in seen(text, **environment).devices]


def program(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def ask(path: str, *, timeout_seconds: float = 10.0) -> NvmlReading:
    return read_without_packages(programs=[path], libraries=[], timeout_seconds=timeout_seconds)


def test_lines_become_devices_and_a_driver() -> None:
    reading = parsed(TWO)
    device = reading.devices[1]
    assert (reading.driver.version, reading.source) == ("580.95.05", "nvidia-smi")
    assert (device.index, device.name, device.compute_capability) == (1, "NVIDIA GeForce RTX 4090", (8, 9))
    assert (device.memory_total_bytes, device.memory_free_bytes) == (24564 * MIB, 20000 * MIB)
    assert (device.compute_mode, device.pcie_width, device.pcie_width_max) == ("exclusive_process", 4, 16)
    assert (device.pci_bus_id, device.mig_enabled, device.processes) == ("0:02:00.0", False, None)


def test_what_is_not_known_is_none() -> None:
    device = parsed(
        "0, NVIDIA GB10, GPU-1, 580.95, 0000000F:01:00.0, [N/A], [N/A], 12.1, Default, ERR!, N/A, [N/A]"
    ).devices[0]
    assert (device.memory_total_bytes, device.pcie_width, device.pcie_width_max) == (None, None, None)


def test_a_driver_that_does_not_know_the_capability_is_helped_by_the_catalogue() -> None:
    text = OLD.format(name="Tesla P40", capability="") + OLD.format(name="Tesla K80", capability="[N/A]")
    assert [device.compute_capability for device in seen(text).devices] == [(6, 1), (3, 7)]


def test_an_unknown_card_of_an_old_driver_is_left_out_and_said() -> None:
    found = seen(OLD.format(name="Mystery 9000", capability=""))
    assert found.devices == ()
    assert "`Mystery 9000`" in found.warnings[0]


def test_text_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="`NVIDIA-SMI"):
        parsed("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")


def test_a_driver_without_devices_is_no_error(tmp_path: Path) -> None:
    reading = ask(program(tmp_path, "echo 'No devices were found'; exit 6"))
    assert (reading.devices, reading.driver.nvml_error) == ((), None)


def test_a_lost_card_is_a_warning_beside_the_others(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."
    reading = ask(program(tmp_path, f"echo '{TWO}{lost}'; exit 15"))
    assert len(reading.devices) == 2
    assert reading.warnings == (f"NVML cannot read a GPU, nvidia-smi says: {lost}",)


def test_hidden_cards_do_not_count() -> None:
    """A-ENV-04."""
    assert names(TWO) == ["NVIDIA GeForce RTX 4090", "NVIDIA T400 4GB"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="GPU-3") == []
    assert names(TWO, CUDA_VISIBLE_DEVICES="GPU-2111") == ["NVIDIA GeForce RTX 4090"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="0") == ["NVIDIA GeForce RTX 4090"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["NVIDIA T400 4GB"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="") == []


def test_a_card_in_mig_mode_is_hidden_when_its_slices_are_not_listed() -> None:
    text = "0, NVIDIA H100 80GB HBM3, GPU-1, 580.95.05, 00000000:01:00.0, 81559, 81000, 9.0, Default, 16, 16, Enabled\n"
    assert parsed(text).devices[0].mig_enabled
    found = seen(text, CUDA_VISIBLE_DEVICES="MIG-1234")
    assert found.devices == ()
    assert [device.name for device in found.hidden] == ["NVIDIA H100 80GB HBM3"]


OLD_SMI = """case "$1" in
  *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
  *mig.mode*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2 ;;
  *) echo "0, Tesla P40, GPU-1111-2222, 440.33, 00000000:01:00.0, 22919, 100, Default, 16, 16" ;;
esac"""


def test_an_nvidia_smi_that_lacks_fields_is_asked_without_them(tmp_path: Path) -> None:
    device = ask(program(tmp_path, OLD_SMI)).devices[0]
    assert (device.name, device.compute_capability, device.memory_free_bytes) == ("Tesla P40", None, 100 * MIB)


def test_the_program_on_the_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, OLD_SMI)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reading = read_without_packages(libraries=[])
    assert [(device.name, device.uuid) for device in reading.devices] == [("Tesla P40", "GPU-1111-2222")]
    assert (reading.driver.version, reading.source) == ("440.33", "nvidia-smi")


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    """A-ENV-15."""
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that …"
    for said, expected in (
        ("Failed to initialize NVML: Driver/library version mismatch", "Driver/library version mismatch"),
        (failed, "Driver Not Loaded"),
        ("Segmentation fault", "Segmentation fault"),
        ("", "nvidia-smi ended with exit code 9"),
    ):
        driver = ask(program(tmp_path, f'echo "{said}"; exit 9')).driver
        assert (driver.nvml_error, driver.version) == (expected, None)


def test_a_program_that_may_not_be_run_is_said(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    Path(path).chmod(0o644)
    assert ask(path).driver.nvml_error == f"`{path}` cannot be run: Permission denied"


def test_a_program_that_hangs_is_given_up_on_with_its_children(tmp_path: Path) -> None:
    driver = ask(program(tmp_path, "sleep 600 & wait"), timeout_seconds=0.5).driver
    assert driver.nvml_error == "`nvidia-smi` gave no answer within 0.5 s"


def test_without_program_and_library_there_is_no_nvml(tmp_path: Path) -> None:
    assert ask(str(tmp_path / "nvidia-smi")).driver.nvml_error == "NVML Shared Library Not Found"


def test_the_kernel_module_is_known_when_nothing_else_answers(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.86  Tue\n")
    missing = FakeNvml(error="NVML Shared Library Not Found")
    reading = read_driver({}, root=tmp_path, library=missing, programs=[], libraries=[])
    assert (reading.driver.version, reading.driver.module_version) == ("470.86", "470.86")
    assert reading.driver.device_nodes is None


def test_what_the_system_shows_is_beside_what_the_driver_says(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.550.54").write_bytes(b"\x7fELF\x02")
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.550.54")
    driver = read_driver({}, root=tmp_path, library=FakeNvml()).driver
    assert (driver.version, driver.device_nodes) == ("535.274.02", ("/dev/nvidiactl",))
    assert driver.cuda_library == str(tmp_path / "usr/lib64/libcuda.so.1")
    assert driver.cuda_library_version == "550.54"


def test_every_field_is_asked_for_once() -> None:
    assert len(set(FIELDS)) == len(FIELDS)
