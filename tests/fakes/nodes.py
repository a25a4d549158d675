"""Nodes of a cluster, made from recorded machines."""

from __future__ import annotations

from typing import Any

from fakes.doctor import machine
from rl_compat.hardware.types import Hardware, Interface, Node

LOOPBACK = Interface(name="lo", address="127.0.0.1")
BRIDGE = Interface(name="docker0", address="172.17.0.1")


def node(number: int, hardware: Hardware | str = "h100", *, interface: str = "eth0", **facts: Any) -> Node:
    """The node `10.0.0.<number>`."""
    read = machine(hardware) if isinstance(hardware, str) else hardware
    address = f"10.0.0.{number}"
    own = Interface(name=interface, address=address)
    values: dict[str, Any] = {
        "name": f"node{number}",
        "hardware": read,
        "num_cpus": read.host.num_cores,
        "num_gpus": len(read.devices),
        "version": "0.1.0",
        "clock_offset_seconds": 0.0,
        "name_address": address,
        "interfaces": (LOOPBACK, own, BRIDGE),
    }
    return Node(address=address, **values | facts)
