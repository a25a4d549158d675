"""The nodes of a cluster that a pool takes, and what all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Device, Hardware, Node


def nodes_with(nodes: Sequence[Node], *, gpus: Sequence[int], num_processes: int, num_nodes: int) -> tuple[Node, ...]:
    """The first nodes that have these GPUs, the same cards on each; without GPUs, those with enough cores.

    Raises HardwareError if there are not enough.
    """
    for first in nodes:
        alike = [
            node for node in nodes if _has(node, gpus, num_processes) and _cards(node, gpus) == _cards(first, gpus)
        ]
        if _has(first, gpus, num_processes) and len(alike) >= num_nodes:
            return tuple(alike[:num_nodes])
    what = f"the same cards as GPUs {list(gpus)}" if gpus else f"{num_processes} cores"
    raise HardwareError(
        f"the pool needs {num_nodes} nodes with {what}, and the cluster has {describe_nodes(nodes)}",
        hint="give the nodes of each kind a pool of their own, or use fewer nodes",
    )


def least(nodes: Sequence[Hardware]) -> Hardware:
    """The first node, with no more memory and cores than any of the nodes has; each has at least its devices."""
    first = nodes[0]
    if all(node is first for node in nodes):
        return first
    hosts = [node.host for node in nodes]
    return replace(
        first,
        devices=tuple(_least_device(device, nodes) for device in first.devices),
        host=replace(
            first.host,
            num_cores=min(host.num_cores for host in hosts),
            ram_total_bytes=min(host.ram_total_bytes for host in hosts),
            ram_limit_bytes=min(host.ram_limit_bytes for host in hosts),
            ram_available_bytes=min(host.ram_available_bytes for host in hosts),
        ),
    )


def describe_nodes(nodes: Sequence[Node]) -> str:
    """`10.0.0.2: 8 x NVIDIA H100; 10.0.0.3: no GPU, 16 cores`."""
    return "; ".join(
        f"{node.address}: {cards_of(node.hardware) if node.hardware else 'not read'}, {node.num_cpus} cores"
        for node in nodes
    )


def cards_of(hardware: Hardware) -> str:
    """`8 x NVIDIA H100`, or `no GPU`."""
    names = [device.name for device in hardware.devices]
    return " and ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"


def _least_device(device: Device, nodes: Sequence[Hardware]) -> Device:
    same = [other for node in nodes for other in node.devices if other.index == device.index]
    return replace(
        device,
        memory_total_bytes=min(other.memory_total_bytes for other in same),
        memory_free_bytes=min(other.memory_free_bytes for other in same),
    )


def _has(node: Node, gpus: Sequence[int], num_processes: int) -> bool:
    if node.hardware is None:
        return False
    return set(gpus) <= {device.index for device in node.hardware.devices} and node.num_cpus >= num_processes


def _cards(node: Node, gpus: Sequence[int]) -> list[str]:
    return [device.name for device in node.hardware.devices if device.index in gpus] if node.hardware else []
