"""Questions to the table of NVIDIA driver branches and kernel modules, and how to install a driver."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.findings import Certainty, Remedy, Step
from rl_compat.doctor.tables.cards import Card
from rl_compat.doctor.tables.rows import Capability, Row, within
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware

OTHER_DRIVERS = {"nouveau": "nouveau", "nova": "nouveau", "nova_core": "nouveau"}
RESERVED_BY = ("vfio-pci", "pci-stub", "xen-pciback")


def branch_of(version: str) -> int:
    """`580.95.05` as 580."""
    return (parse_version(version) or (0,))[0]


def branch_row(version: str) -> Row | None:
    """The row of the driver's branch: its kind and the month in which its support ends."""
    rows = read_table("drivers")["branches"]
    return next((row for row in rows if row["branch"] == branch_of(version)), None)


def support_ended(row: Row, today: date) -> bool:
    """Whether the month in which the support of a branch ends is over."""
    month = parse_version((row["eol"] or "").replace("-", "."))
    return month < (today.year, today.month) if month else bool(row["ended"])


def last_branch(capability: Capability) -> int | None:
    """The last branch that supports a capability; None if new ones still do."""
    branch: int | None = _support(capability).get("last_driver_branch")
    return branch


def first_driver(capability: Capability) -> str | None:
    """The oldest driver that supports a capability; None if not listed."""
    driver: str | None = _support(capability).get("first_driver")
    return driver


def _support(capability: Capability) -> Row:
    return next((row for row in read_table("drivers")["arch_support"] if within(row, capability)), {})


def needed_module(capability: Capability) -> str | None:
    """The only kernel module that supports a capability: `open` or `proprietary`; None if both do."""
    flavours = [row["flavour"] for row in read_table("drivers")["kernel_modules"] if within(row, capability)]
    return flavours[0] if len(flavours) == 1 else None


def recommended_branch(capabilities: Iterable[Capability]) -> int:
    """The branch to install for cards with those capabilities."""
    advised = int(read_table("drivers")["recommended_branch"])
    return min([advised, *(last for card in capabilities if (last := last_branch(card)) is not None)])


def install_driver(hardware: Hardware, cards: Iterable[Card]) -> Remedy:
    """Install the branch and the kernel module that those cards need; in a container, on the host."""
    capabilities = [card.capability for card in cards if card.capability is not None]
    branch = recommended_branch(capabilities)
    old = any(needed_module(capability) == "proprietary" for capability in capabilities)
    package = f"nvidia-driver-{branch}" if old or branch < 515 else f"nvidia-driver-{branch}-open"
    flavour = "proprietary" if old or branch < 515 else "open"
    row = branch_row(f"{branch}.0")
    until = f", supported until {row['eol']}" if row and row["eol"] and not row["ended"] else ""
    what = f"install the NVIDIA driver of branch R{branch} with the {flavour} kernel module{until}, then restart"
    if hardware.host.wsl:
        windows = "install NVIDIA's newest driver in Windows, then run `wsl --shutdown` there; install none inside WSL"
        return Remedy(windows, Step.DRIVER)
    if hardware.host.container:
        return Remedy(f"on the host, not in this container: {what} (on Ubuntu, package `{package}`)", Step.DRIVER)
    names = "the package has this name on Ubuntu and similar systems, and another name elsewhere"
    return Remedy(f"{what}; {names}", Step.DRIVER, (f"sudo apt-get install {package}",), Certainty.UNCERTAIN)


def why_unlisted(hardware: Hardware, card: Card) -> str | None:
    """Why the driver does not list a card on the PCI bus; None for a card that it lists or need not list.

    `nouveau`, `reserved`, `no_driver`, `legacy` (the driver is newer than the card's last branch), `driver_too_old`,
    `open_module`, `proprietary_module`, `silent` (bound to the driver but not listed) or `refused` (no other reason).
    """
    driver = hardware.driver
    if card.listed:
        return None
    if card.kernel_driver in OTHER_DRIVERS:
        return "nouveau"
    if card.kernel_driver in RESERVED_BY:
        return "reserved"
    version = driver.module_version or driver.version
    if version is None:
        bound = "silent" if card.kernel_driver == "nvidia" else "no_driver"
        return None if hardware.devices else bound
    fallback = "silent" if card.kernel_driver == "nvidia" else "refused"
    return _mismatch(version, driver.kernel_module, card.capability) or fallback


def _mismatch(version: str, module: str | None, capability: Capability | None) -> str | None:
    if capability is None:
        return None
    last, first = last_branch(capability), first_driver(capability)
    if last is not None and branch_of(version) > last:
        return "legacy"
    if first is not None and parse_version(version) < parse_version(first):
        return "driver_too_old"
    needed = needed_module(capability)
    return f"{module}_module" if module and needed and needed != module else None
