"""Which of NVIDIA's two kernel modules the cards need: the open one, the proprietary one, or both at once."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.tables.cards import Card, all_cards, capability_text, names
from rl_compat.doctor.tables.drivers import install_driver, needed_module, why_unlisted
from rl_compat.hardware.types import Hardware


def check_kernel_module(hardware: Hardware) -> Iterator[Finding]:
    """Nothing where the flavour is not known, and under WSL, whose driver is that of Windows."""
    cards = [card for card in all_cards(hardware) if card.capability is not None]
    if not cards or hardware.host.wsl:
        return
    old = [card for card in cards if _needs(card) == "proprietary"]
    new = [card for card in cards if _needs(card) == "open"]
    if old and new:
        yield _no_common(hardware, old, new)
        return
    module = hardware.driver.kernel_module
    if module is None:
        return
    wrong = [card for card in cards if why_unlisted(hardware, card) == f"{module}_module"]
    if wrong:
        yield _wrong(hardware, module, wrong)
    else:
        needed = f", which {names(old or new)} needs" if (old or new) else ""
        yield Finding(
            id="kernel_module.fits",
            severity=Severity.OK,
            what=f"the {module} kernel module is loaded{needed}",
            where=("/proc/driver/nvidia/version",),
        )


def _needs(card: Card) -> str | None:
    return needed_module(card.capability) if card.capability is not None else None


def _wrong(hardware: Hardware, module: str, cards: list[Card]) -> Finding:
    if module == "open":
        rule = "drives cards from compute capability 7.5 on"
        why = "the open module works through a processor (GSP) that older cards do not have"
    else:
        rule = "does not drive Blackwell cards"
        why = "NVIDIA drives its cards from Blackwell on with the open module alone"
    told = ", ".join(f"{card.name} has {capability_text(card.capability)}" for card in cards if card.capability)
    return Finding(
        id="kernel_module.open_below_7_5" if module == "open" else "kernel_module.proprietary_on_blackwell",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=f"the {module} kernel module is loaded, which {rule}: {told}",
        why=f"{why}; nvidia-smi says `No devices were found`",
        where=("/proc/driver/nvidia/version", "PCI bus"),
        affects=("training",),
        remedies=(install_driver(hardware, cards),),
    )


def _no_common(hardware: Hardware, old: list[Card], new: list[Card]) -> Finding:
    module = hardware.driver.kernel_module
    left_out = new if module == "proprietary" else old
    loaded = f"; loaded is the {module} one, without {names(left_out)}" if module else ""
    return Finding(
        id="kernel_module.no_common",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=f"{names(old)} needs the proprietary kernel module and {names(new)} the open one{loaded}",
        why="one system loads one of the two: these cards cannot train side by side in it",
        where=("PCI bus", "/proc/driver/nvidia/version"),
        affects=("training", "several GPUs"),
        remedies=(
            Remedy(what=f"move {names(left_out)} into a second machine", step=Step.DRIVER),
            Remedy(what=f"hand {names(left_out)} to a virtual machine with its own driver (vfio)", step=Step.DRIVER),
        ),
    )


CHECKS: tuple[Check, ...] = (
    Check(id="kernel_module", question="is the kernel module the one that the cards need?", run=check_kernel_module),
)
