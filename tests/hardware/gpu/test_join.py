"""NVML's and CUDA's readings become one list of devices."""

from __future__ import annotations

from dataclasses import replace

from recordings.compose import cuda_device, host, nvml_device

from rl_compat.hardware.gpu.join import join
from rl_compat.hardware.gpu.readings import CudaDevice, NvmlDevice, NvmlReading, NvmlSlice, TorchReading
from rl_compat.hardware.probe import assemble
from rl_compat.hardware.types import Driver, Link, Process, TorchBuild
from rl_compat.units import GIB, MIB

SMALL = nvml_device(0, "NVIDIA T400 4GB", total=4 * GIB, compute_capability=(7, 5))
BIG = nvml_device(1, "NVIDIA GeForce RTX 4090", total=24 * GIB, free=23 * GIB)


def nvml(*devices: NvmlDevice) -> NvmlReading:
    return NvmlReading(devices=devices)


def cuda(*devices: CudaDevice) -> TorchReading:
    return TorchReading(devices=devices)


def test_devices_are_joined_by_uuid_when_the_orders_differ() -> None:
    """A-ENV-05."""
    joined = join(nvml(SMALL, BIG), cuda(cuda_device(0, BIG), cuda_device(1, SMALL)), {})
    first, second = joined.devices
    assert (first.name, first.index, first.nvml_index) == ("NVIDIA GeForce RTX 4090", 0, 1)
    assert (first.memory_total_bytes, first.memory_free_bytes) == (24 * GIB, 23 * GIB)
    assert (second.name, second.nvml_index) == ("NVIDIA T400 4GB", 0)
    assert joined.warnings == ("nvidia-smi numbers the GPUs differently: cuda:0 is 1, cuda:1 is 0 there",)


def test_the_pci_address_stands_in_for_a_missing_uuid() -> None:
    twins = [nvml_device(index, "Tesla P40", total=22 * GIB, free=(20 - index) * GIB) for index in range(2)]
    seen = cuda_device(0, twins[1], uuid=None, pci_bus_id="0000:02:00.0")
    device = join(nvml(*twins), cuda(seen), {"CUDA_VISIBLE_DEVICES": "1"}).devices[0]
    assert device.nvml_index == 1
    assert device.memory_free_bytes == 19 * GIB


def test_a_name_that_only_one_device_has_identifies_it() -> None:
    seen = cuda_device(0, BIG, name="GeForce RTX 4090", uuid=None, pci_bus_id=None)
    assert join(nvml(SMALL, BIG), cuda(seen), {}).devices[0].nvml_index == 1


def test_twins_without_uuid_and_address_are_not_guessed() -> None:
    twins = [nvml_device(index, "Tesla P40", total=22 * GIB) for index in range(2)]
    seen = [cuda_device(index, twin, uuid=None, pci_bus_id=None) for index, twin in enumerate(twins)]
    joined = join(nvml(*twins), cuda(*seen), {})
    assert [device.nvml_index for device in joined.devices] == [None, None]
    assert "could not be found in NVML" in joined.warnings[0]


def test_free_memory_is_nvmls_and_never_above_cudas_total() -> None:
    seen = cuda_device(0, BIG, memory_total_bytes=22 * GIB)
    device = join(nvml(BIG), cuda(seen), {}).devices[0]
    assert device.memory_total_bytes == 22 * GIB
    assert device.memory_free_bytes == 22 * GIB
    assert device.sources["memory_free_bytes"] == "nvml"
    assert device.sources["memory_total_bytes"] == "cuda"


def test_devices_come_from_cuda_alone_when_nvml_is_missing() -> None:
    """A-ENV-06: the facts are CUDA's, and processes are unknown, not none."""
    reading = TorchReading(
        build=TorchBuild(version="2.14.1+cu130", cuda="13.0", cuda_available=True),
        devices=(cuda_device(0, BIG),),
        driver_cuda_version="13.0",
    )
    missing = NvmlReading(driver=Driver(nvml_error="Driver Not Loaded"))
    found = assemble(missing, reading, host(wsl=True), environment={})
    device = found.devices[0]
    assert device.memory_total_bytes == 24 * GIB
    assert device.memory_free_bytes == 23 * GIB - 300 * MIB
    assert device.processes is None
    assert device.uuid == "GPU-21111111-2222-3333-4444-555555555555"
    assert found.driver.cuda_version == "13.0"
    assert "come from CUDA alone" in found.warnings[0]


def test_devices_come_from_nvml_when_torch_is_a_cpu_build() -> None:
    """A-ENV-10."""
    reading = TorchReading(build=TorchBuild(version="2.6.0+cpu"))
    found = assemble(nvml(BIG), reading, host(), environment={})
    device = found.devices[0]
    assert (device.index, device.compute_capability, device.num_multiprocessors) == (0, (8, 9), 128)
    assert device.shared_memory_optin_bytes == 99 * 1024
    assert device.sources["num_multiprocessors"] == "catalogue"
    assert found.warnings == ("the driver lists 1 usable GPU(s), torch 2.6.0+cpu (a CPU build) none",)


def test_without_cuda_the_visible_devices_are_worked_out() -> None:
    """A-ENV-04: the second GPU by UUID becomes cuda:0, the other one is hidden."""
    joined = join(nvml(SMALL, BIG), TorchReading(), {"CUDA_VISIBLE_DEVICES": BIG.uuid or ""})
    assert [(device.index, device.name) for device in joined.devices] == [(0, "NVIDIA GeForce RTX 4090")]
    assert [(device.index, device.name) for device in joined.hidden] == [(0, "NVIDIA T400 4GB")]


def test_without_cuda_numbers_count_the_fastest_first_unless_ordered_by_bus() -> None:
    fastest = join(nvml(SMALL, BIG), TorchReading(), {"CUDA_VISIBLE_DEVICES": "0"})
    by_bus = join(nvml(SMALL, BIG), TorchReading(), {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert fastest.devices[0].name == "NVIDIA GeForce RTX 4090"
    assert "fastest" in fastest.warnings[0]
    assert by_bus.devices[0].name == "NVIDIA T400 4GB"
    assert by_bus.warnings == ()


def test_hiding_every_device_is_no_contradiction() -> None:
    reading = TorchReading(build=TorchBuild(version="2.14.1+cu126", cuda="12.6"))
    found = assemble(nvml(BIG), reading, host(), environment={"CUDA_VISIBLE_DEVICES": ""})
    assert found.devices == ()
    assert len(found.hidden_devices) == 1
    assert found.warnings == ()


def test_other_processes_and_free_memory_are_kept() -> None:
    """A-ENV-14."""
    foreign = Process(pid=4321, name="python", used_bytes=int(20.5 * GIB))
    busy = replace(BIG, memory_free_bytes=3 * GIB, processes=(foreign,))
    device = join(nvml(busy), cuda(cuda_device(0, busy)), {}).devices[0]
    assert device.memory_free_bytes == 3 * GIB
    assert device.processes == (foreign,)


PART = NvmlSlice(uuid="MIG-99999999-0000", profile="1g.10gb", memory_total_bytes=10 * GIB, memory_free_bytes=9 * GIB)


def test_a_mig_slice_has_its_own_memory_and_the_parents_capability() -> None:
    parent = nvml_device(0, "NVIDIA H100 80GB HBM3", total=80 * GIB, mig_enabled=True, slices=(PART,))
    seen = cuda_device(0, parent, memory_total_bytes=10 * GIB, memory_free_bytes=int(9.5 * GIB), uuid="99999999-0000")
    with_cuda = join(nvml(parent), cuda(seen), {}).devices[0]
    without_cuda = join(nvml(parent), TorchReading(), {"CUDA_VISIBLE_DEVICES": PART.uuid}).devices[0]
    assert (with_cuda.mig_profile, with_cuda.uuid) == ("1g.10gb", PART.uuid)
    assert (with_cuda.memory_total_bytes, with_cuda.memory_free_bytes) == (10 * GIB, int(9.5 * GIB))
    assert (without_cuda.memory_total_bytes, without_cuda.memory_free_bytes) == (10 * GIB, 9 * GIB)
    assert without_cuda.compute_capability == (9, 0)
    assert without_cuda.name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


def test_cuda_naming_the_parent_of_a_slice_is_understood() -> None:
    parent = nvml_device(0, "NVIDIA H100 80GB HBM3", total=80 * GIB, mig_enabled=True, slices=(PART,))
    seen = cuda_device(0, parent, memory_total_bytes=10 * GIB, memory_free_bytes=9 * GIB)
    assert join(nvml(parent), cuda(seen), {}).devices[0].mig_profile == "1g.10gb"


def test_a_card_without_memory_reading_takes_the_catalogues() -> None:
    spark = replace(nvml_device(0, "NVIDIA GB10", total=1), memory_total_bytes=None, memory_free_bytes=None)
    device = join(nvml(spark), TorchReading(), {}).devices[0]
    assert device.memory_total_bytes == 128 * GIB
    assert device.sources["memory_total_bytes"] == "catalogue"


def test_a_card_that_nothing_is_known_of_is_left_out_and_said() -> None:
    strange = NvmlDevice(index=0, name="Mystery 9000")
    joined = join(nvml(strange), TorchReading(), {})
    assert joined.devices == ()
    assert joined.warnings == ("`Mystery 9000` is left out: its capability or memory is not known",)


def test_bf16_that_torch_only_emulates_is_not_native() -> None:
    """A-ENV-03."""
    t4 = nvml_device(0, "Tesla T4", total=15 * GIB)
    asked = join(nvml(t4), cuda(cuda_device(0, t4, bf16_native=None)), {}).devices[0]
    assert asked.bf16_native is False
    assert asked.sources["bf16_native"] == "rule"


def test_facts_of_the_board_and_their_source_are_kept() -> None:
    board = replace(BIG, compute_mode="prohibited", pcie_width=4, pcie_width_max=16, bar1_total_bytes=256 * MIB)
    for torch in (TorchReading(), cuda(cuda_device(0, board))):
        device = join(NvmlReading(devices=(board,), source="nvidia-smi"), torch, {}).devices[0]
        assert (device.compute_mode, device.pcie_width, device.pcie_width_max) == ("prohibited", 4, 16)
        assert device.bar1_total_bytes == 256 * MIB
        assert device.sources["compute_mode"] == device.sources["uuid"] == "nvidia-smi"


def test_links_and_peer_access_meet_in_cudas_order() -> None:
    reading = NvmlReading(devices=(SMALL, BIG), links=(Link(first=0, second=1, kind="pcie_host_bridge"),))
    torch = replace(cuda(cuda_device(0, BIG), cuda_device(1, SMALL)), peer_access={(0, 1): False, (1, 0): False})
    found = assemble(reading, torch, host(), environment={})
    assert found.links == (Link(first=0, second=1, kind="pcie_host_bridge", peer_access=False),)
