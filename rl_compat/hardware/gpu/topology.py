"""Connections between GPUs from the driver, joined with the peer access that CUDA reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from rl_compat.hardware.gpu.readings import NvmlLink
from rl_compat.hardware.types import Device, Link

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


def read_links(nvml: Any, handles: Mapping[int, Any]) -> tuple[NvmlLink, ...]:
    """The link of each pair of GPUs that the driver reports, by NVML index."""
    links = []
    for first, second in combinations(sorted(handles), 2):
        kind = _kind(nvml, handles[first], handles[second])
        if kind is not None:
            links.append(NvmlLink(first=first, second=second, kind=kind))
    return tuple(links)


def _kind(nvml: Any, first: Any, second: Any) -> str | None:
    try:
        if nvml.nvmlDeviceGetP2PStatus(first, second, NVLINK_CAPABILITY) == 0:
            return "nvlink"
    except nvml.NVMLError:
        pass
    try:
        return ANCESTORS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second))
    except nvml.NVMLError:
        return None


def join_links(
    devices: Sequence[Device], links: Sequence[NvmlLink], peer_access: Mapping[tuple[int, int], bool]
) -> tuple[Link, ...]:
    """The known links between visible devices, by CUDA index.

    `peer_access` says for an ordered pair whether the first can read the second's memory; a link needs both directions.
    """
    kinds = {frozenset((link.first, link.second)): link.kind for link in links}
    joined = []
    for first, second in combinations(devices, 2):
        kind = kinds.get(frozenset((first.nvml_index, second.nvml_index)))  # type: ignore[arg-type]
        ways = [peer_access.get(pair) for pair in ((first.index, second.index), (second.index, first.index))]
        access = None if None in ways else all(ways)
        if kind is not None or access is not None:
            joined.append(Link(first=first.index, second=second.index, kind=kind, peer_access=access))
    return tuple(joined)
