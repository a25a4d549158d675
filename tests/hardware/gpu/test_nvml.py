"""The driver's view, through a library with pynvml's functions."""

from __future__ import annotations

import os

from fakes.nvml import FakeGpu, FakeNvml

from rl_compat.hardware.gpu.nvml import cuda_version_text, read_nvml
from rl_compat.hardware.types import MemoryHealth, Process


def test_a_card_is_read_with_driver_and_processes() -> None:
    """A-ENV-14: other processes with pid and amount, this one left out."""
    processes = [(4321, "python", 700), (5, "Xorg", None), (os.getpid(), "me", 10)]
    library = FakeNvml([FakeGpu("Tesla P40", (6, 1), processes=processes)])
    reading = read_nvml(library)
    device = reading.devices[0]
    assert (device.name, device.compute_capability) == ("Tesla P40", (6, 1))
    assert (device.memory_total_bytes, device.memory_free_bytes) == (1000, 900)
    assert device.pci_bus_id == "00000000:01:00.0"
    assert device.processes == (
        Process(pid=5, name="Xorg"),
        Process(pid=4321, name="python", used_bytes=700),
    )
    assert (reading.driver.version, reading.driver.cuda_version) == ("535.274.02", "12.2")
    assert library.closed


def test_mode_lanes_and_bar_are_read() -> None:
    gpu = FakeGpu("Tesla P40", mode=2, widths=(1, 16), bar1=256)
    device = read_nvml(FakeNvml([gpu])).devices[0]
    assert (device.compute_mode, device.bar1_total_bytes) == ("prohibited", 256)
    assert (device.pcie_width, device.pcie_width_max) == (1, 16)


def test_cuda_11040_is_shown_as_11_4() -> None:
    """A-ENV-09."""
    assert cuda_version_text(11040) == "11.4"
    assert cuda_version_text(13000) == "13.0"


def test_a_library_that_refuses_is_an_error_in_the_reading() -> None:
    """A-ENV-15."""
    reading = read_nvml(FakeNvml(error="Driver Not Loaded"))
    assert reading.devices == ()
    assert reading.driver.nvml_error == "Driver Not Loaded"


def test_what_a_card_does_not_answer_is_none() -> None:
    gpu = FakeGpu("NVIDIA GB10", capability=None, total=None, processes=None)
    device = read_nvml(FakeNvml([gpu])).devices[0]
    assert device.compute_capability is None
    assert device.memory_total_bytes is None
    assert device.processes is None


def test_a_lost_card_is_a_warning_and_the_others_are_read() -> None:
    reading = read_nvml(FakeNvml([FakeGpu("A", broken=True), FakeGpu("B")]))
    assert [(device.index, device.name) for device in reading.devices] == [(1, "B")]
    assert reading.warnings == ("NVML cannot read GPU 0: GPU is lost",)


def test_mig_slices_are_read_with_their_profile_and_memory() -> None:
    part = FakeGpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", uuid="MIG-7", total=50, free=40)
    gpu = FakeGpu("NVIDIA A100-SXM4-40GB", mig=True, slices=[part])
    device = read_nvml(FakeNvml([gpu])).devices[0]
    found = device.slices[0]
    assert device.mig_enabled
    assert (found.uuid, found.profile, found.num_multiprocessors) == ("MIG-7", "1g.5gb", 14)
    assert (found.memory_total_bytes, found.memory_free_bytes) == (50, 40)


def test_errors_and_repairs_of_the_memory_are_read_of_old_and_new_cards() -> None:
    old = FakeGpu("Tesla P40", ecc_errors=3, retired=(1, 2))
    new = FakeGpu("NVIDIA A100-SXM4-40GB", ecc_errors=0, remapped=(4, 1, 1, 0))
    gaming = FakeGpu("NVIDIA GeForce RTX 3090")

    reading = read_nvml(FakeNvml([old, new, gaming]))

    assert [device.memory_health for device in reading.devices] == [
        MemoryHealth(uncorrected_errors=3, retired_pages=3, repair_pending=True),
        MemoryHealth(uncorrected_errors=0, retired_pages=5, repair_pending=True),
        None,
    ]
