"""Cards that only the PCI bus knows, because no driver serves them or the driver gave them up."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.checks.card_health import LOST
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import Card, all_cards, names
from rl_compat.doctor.tables.drivers import install_driver, why_unlisted
from rl_compat.hardware.types import Hardware


def check_pci_cards(hardware: Hardware) -> Iterator[Finding]:
    """Cards that only the PCI bus knows, unless the driver or its kernel module explains them."""
    if hardware.host.container and not hardware.devices:
        return
    by_reason: dict[str | None, list[Card]] = {}
    for card in all_cards(hardware):
        by_reason.setdefault(why_unlisted(hardware, card), []).append(card)
    if "nouveau" in by_reason:
        yield _nouveau(hardware, by_reason["nouveau"])
    if "reserved" in by_reason:
        yield _reserved(hardware, by_reason["reserved"])
    silent = by_reason.get("silent", []) if hardware.driver.nvml_error is None and not _shut_out(hardware) else []
    if "refused" in by_reason or (silent and not any(LOST.search(text) for text in hardware.warnings)):
        yield _refused(hardware, [*by_reason.get("refused", []), *silent])


def _nouveau(hardware: Hardware, cards: list[Card]) -> Finding:
    return Finding(
        id="gpu.nouveau",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=f"{names(cards)} at {_places(cards)} is served by the kernel's own driver `{cards[0].kernel_driver}`",
        why="it draws a desktop and knows no CUDA: training does not see the card",
        where=("PCI bus",),
        affects=("training",),
        remedies=(install_driver(hardware, cards),),
    )


def _reserved(hardware: Hardware, cards: list[Card]) -> Finding:
    remedy = Remedy(
        what="take the card's id out of the `vfio-pci.ids` of the kernel's command line or of /etc/modprobe.d, restart",
        step=Step.DRIVER,
        commands=("grep -rn vfio /etc/modprobe.d /proc/cmdline",),
    )
    return Finding(
        id="gpu.reserved",
        severity=Severity.OK if hardware.devices else Severity.WARNING,
        what=f"{names(cards)} at {_places(cards)} is set aside for a virtual machine (`{cards[0].kernel_driver}`)",
        why="the card belongs to a guest: this system cannot train on it",
        where=("PCI bus",),
        affects=("training",),
        remedies=() if hardware.devices else (remedy,),
    )


def _refused(hardware: Hardware, cards: list[Card]) -> Finding:
    version = hardware.driver.module_version or hardware.driver.version
    look = shell(
        "see why; `BAR1 is 0M` or `can't assign` in it is the address space", "sudo dmesg | grep -iE 'nvrm|bar '"
    )
    space = Remedy(
        what="switch on `Above 4G decoding` in the firmware's setup and switch off its compatibility mode (CSM): "
        "a data-centre card wants 16 to 64 GiB of address space there",
        step=Step.SYSTEM,
    )
    return Finding(
        id="gpu.refused",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=f"driver {version} is loaded and does not list {names(cards)} at {_places(cards)}",
        why="the driver gave the card up when it started it: too little address space, a loose riser or power cable",
        where=("PCI bus", "nvml"),
        affects=("training",),
        remedies=(look, space) if any(card.large_bar for card in cards) else (look,),
    )


def _shut_out(hardware: Hardware) -> bool:
    """Whether a container or a scheduler gives this process some of the cards only."""
    return bool(hardware.host.container or hardware.driver.closed_device_nodes)


def _places(cards: list[Card]) -> str:
    return ", ".join(card.where for card in cards)
