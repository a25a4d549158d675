"""Network interfaces: those of this machine, and the one through which nodes of a cluster reach each other."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from rl_compat.hardware.types import Interface, Node

GET_ADDRESS = 0x8915
"Linux's request SIOCGIFADDR"


def read_interfaces() -> tuple[Interface, ...]:
    """The interfaces of this machine that have an IPv4 address; none where Linux cannot be asked."""
    try:
        import fcntl
    except ImportError:
        return ()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(asker, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                found.append(Interface(name=name, address=socket.inet_ntoa(answer[20:24])))
    return tuple(found)


def interface_between(node: Node, nodes: Sequence[Node]) -> Interface | None:
    """The interface through which a node reaches the others; None if none of its interfaces does.

    It is the one with the address at which Ray reaches the node. Where Ray names another address, it is the one whose
    address is nearest to that of another node; an address that several nodes have, as a container bridge does, reaches
    none of them. Nodes with one address are on one machine and use the loopback interface.
    """
    others = [other for other in nodes if other is not node]
    loopback = next((found for found in node.interfaces if is_loopback(found.address)), None)
    if all(other.address == node.address for other in others):
        return loopback
    usable = [found for found in node.interfaces if not is_loopback(found.address)]
    named = [found for found in usable if found.address == node.address]
    elsewhere = [found.address for other in others for found in other.interfaces if not is_loopback(found.address)]
    own = [found for found in usable if found.address not in elsewhere]
    ranked = named or sorted(own, key=lambda found: -_nearness(found.address, elsewhere))
    return ranked[0] if ranked else None


def is_loopback(address: str) -> bool:
    """Whether an address leads back to its own machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _nearness(address: str, others: Sequence[str]) -> int:
    """Leading bits that an address has in common with the nearest of the others."""
    own = int(ipaddress.ip_address(address))
    return max((32 - (own ^ int(ipaddress.ip_address(other))).bit_length() for other in others), default=0)
