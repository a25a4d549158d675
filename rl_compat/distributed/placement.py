"""The order of ranks: which of the devices that a cluster gives becomes which rank."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

from rl_compat.errors import HardwareError


class Bundle(NamedTuple):
    """A device that a cluster gives, in no particular order."""

    address: str
    "of the node"
    device: int
    "number of the GPU, or of the process, in the node"


def rank_order(bundles: Sequence[Bundle]) -> list[int]:
    """The positions of the bundles in the order of ranks: by the address of their node, then by device.

    Addresses are ordered as numbers, so that `10.0.0.2` comes before `10.0.0.10`; names come after addresses, and the
    numbers in them count as numbers. Ranks of one node are consecutive, so that shards of `k` ranks stay inside a node
    wherever `k` divides its devices. Raises HardwareError for a device that is given twice.
    """
    first: dict[Bundle, int] = {}
    for position, bundle in enumerate(bundles):
        if first.setdefault(bundle, position) != position:
            raise HardwareError(
                f"the bundles {first[bundle]} and {position} are both device {bundle.device} of `{bundle.address}`",
                hint="give every process a device of its own",
            )
    return sorted(range(len(bundles)), key=lambda position: (_order(bundles[position].address), bundles[position]))


def _order(address: str) -> tuple[int, tuple[int | str, ...]]:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parts = re.split(r"(\d+)", address)
        return 9, tuple(int(part) if number % 2 else part for number, part in enumerate(parts))
    return parsed.version, (int(parsed),)
