"""Links between GPUs: the driver's kinds, CUDA's indexes, and access both ways."""

from __future__ import annotations

from dataclasses import replace

from fakes.machines import A100, T4
from fakes.nvml import FakeGpu, FakeNvml

from rl_compat.hardware.gpu.join import join_links
from rl_compat.hardware.gpu.nvml import read_nvml
from rl_compat.hardware.types import Device, Link

KINDS = {0: "pcie_switch", 10: "pcie_switch", 20: "pcie_switch", 30: "pcie_host_bridge", 40: "numa_node", 50: "system"}


def gpus(number: int) -> list[FakeGpu]:
    return [FakeGpu("Tesla V100", uuid=f"GPU-{index}", bus=f"0:{index}:0") for index in range(number)]


def numbered(device: Device, index: int, nvml_index: int | None) -> Device:
    return replace(device, index=index, nvml_index=nvml_index)


def test_nvlink_goes_before_the_way_over_the_bus() -> None:
    library = FakeNvml(
        gpus(3),
        nvlinks={("0:0:0", "0:1:0")},
        ancestors={("0:0:0", "0:1:0"): 50, ("0:0:0", "0:2:0"): 50},
    )
    assert read_nvml(library).links == (
        Link(first=0, second=1, kind="nvlink"),
        Link(first=0, second=2, kind="system"),
    )


def test_every_level_of_the_topology_has_its_kind() -> None:
    for level, kind in KINDS.items():
        library = FakeNvml(gpus(2), ancestors={("0:0:0", "0:1:0"): level})
        assert [link.kind for link in read_nvml(library).links] == [kind]


def test_links_are_told_by_cudas_indexes() -> None:
    devices = [numbered(A100, 0, 2), numbered(T4, 1, 0)]
    links = [Link(first=0, second=2, kind="numa_node"), Link(first=0, second=1, kind="nvlink")]
    assert join_links(devices, links, {}) == (Link(first=0, second=1, kind="numa_node"),)


def test_access_counts_only_both_ways() -> None:
    devices = [numbered(A100, 0, None), numbered(A100, 1, None)]
    assert join_links(devices, [], {(0, 1): True, (1, 0): True})[0].peer_access is True
    assert join_links(devices, [], {(0, 1): True, (1, 0): False})[0].peer_access is False
    assert join_links(devices, [], {(0, 1): True}) == ()
