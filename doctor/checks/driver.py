"""Checks of the NVIDIA driver: there, whole, of a branch that drives the cards and is still looked after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from rl_compat.doctor.checks import kernel_module, nvml
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import WSL_LIBRARY_PATH, shell
from rl_compat.doctor.tables.cards import Card, all_cards, capability_text, names
from rl_compat.doctor.tables.drivers import (
    branch_of,
    branch_row,
    first_driver,
    install_driver,
    last_branch,
    recommended_branch,
    support_ended,
    why_unlisted,
)
from rl_compat.hardware.gpu.binaries import wheel_supports
from rl_compat.hardware.types import Hardware

CUDA_13 = (13, 0)
WSL_LIBRARIES = "/usr/lib/wsl/"


def check_driver(hardware: Hardware, *, today: date | None = None) -> Iterator[Finding]:
    """Nothing without an NVIDIA card or driver. `today` is the day of the recording when not given."""
    driver, cards = hardware.driver, all_cards(hardware)
    if hardware.emulated is not None or not (cards or driver.version or driver.module_version):
        return
    if hardware.host.wsl:
        yield _under_wsl(hardware)
        return
    found = [
        *_mismatch(hardware),
        *_missing(hardware, cards),
        *_unfit(hardware, cards),
    ]
    yield from found
    if not found:
        yield _fits(hardware, cards)
        yield from _branch(hardware, cards, today or _recorded(hardware))
    yield from _misleading_cuda(hardware, cards)


def _under_wsl(hardware: Hardware) -> Finding:
    library = hardware.driver.cuda_library
    if library is None or library.startswith(WSL_LIBRARIES):
        runs = f", runs CUDA up to {hardware.driver.cuda_version}" if hardware.driver.cuda_version else ""
        return Finding(id="driver.windows", severity=Severity.OK, what=f"the driver is the one of Windows{runs}")
    return Finding(
        id="driver.linux_in_wsl",
        severity=Severity.WARNING,
        what=f"`libcuda.so.1` comes from `{library}`, not from `{WSL_LIBRARIES}lib`",
        why="a driver for Linux was installed inside WSL; it hides the one of Windows, the only one that works there",
        where=("libcuda.so.1",),
        affects=("training",),
        remedies=(
            shell("put the library of Windows first", WSL_LIBRARY_PATH),
            Remedy(
                what="remove the Linux driver from WSL (the packages have these names on Ubuntu)",
                step=Step.SYSTEM,
                commands=("sudo apt-get purge 'libnvidia-compute-*' 'nvidia-driver-*'",),
                sure=Sureness.UNSURE,
            ),
        ),
    )


def _mismatch(hardware: Hardware) -> Iterator[Finding]:
    """Libraries of one version over a kernel module of another."""
    driver = hardware.driver
    said = "version mismatch" in (driver.nvml_error or "").lower()
    module = driver.module_version or driver.version or "of an unknown version"
    library = driver.version if driver.version not in (None, module) else None
    if not said and library is None:
        return
    container = hardware.host.container
    restart = Remedy(
        what="restart the machine: it then loads the module that belongs to the libraries", step=Step.DRIVER
    )
    reload_module = Remedy(
        what="with every program on the GPUs and the desktop stopped, load the module anew",
        step=Step.DRIVER,
        commands=("sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia", "sudo modprobe nvidia nvidia_uvm"),
        sure=Sureness.UNSURE,
    )
    anew = Remedy(
        what="start the container anew: it still has the libraries that the host had before its driver changed; "
        "if the host's own `nvidia-smi` fails too, restart the host",
        step=Step.CONTAINER,
    )
    yield Finding(
        id="driver.mismatch",
        severity=Severity.FAILURE,
        what=f"the driver's kernel module is {module} and its libraries are {library or 'of another version'}"
        + (f": {driver.nvml_error}" if said else ""),
        why="the driver was updated and the old module stayed loaded: nvidia-smi and CUDA fail until the two agree",
        where=("nvml", "/proc/driver/nvidia/version"),
        affects=("training",),
        remedies=(anew,) if container else (restart, reload_module),
    )


def _missing(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    without = [card for card in cards if why_unlisted(hardware, card) == "no_driver"]
    if not without:
        return
    yield Finding(
        id="driver.missing",
        severity=Severity.FAILURE,
        what=f"{names(without)} is in the machine ({_places(without)}) and no NVIDIA driver is loaded",
        why="without it training runs on the CPU. Where it is installed, Secure Boot or a new kernel kept it out",
        where=("PCI bus", "/proc/driver/nvidia/version"),
        affects=("training", "rollout"),
        remedies=(
            install_driver(hardware, without),
            shell(
                "if it is installed, see why it is not loaded",
                "sudo modprobe nvidia",
                "sudo dmesg | tail",
                "dkms status",
            ),
        ),
    )


def _unfit(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    """Cards that the loaded driver no longer, or not yet, drives."""
    version = hardware.driver.module_version or hardware.driver.version or ""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    past = [card for card in cards if why_unlisted(hardware, card) == "legacy"]
    early = [card for card in cards if why_unlisted(hardware, card) == "driver_too_old"]
    every = [card for card in cards if card.capability is not None]
    if past or "legacy" in (hardware.driver.nvml_error or "").lower():
        last = min(
            (last_branch(card.capability) or 0 for card in past if card.capability), default=recommended_branch(())
        )
        yield Finding(
            id="driver.legacy",
            severity=severity,
            what=f"driver {version or 'of unknown version'} no longer drives {names(past) or 'this card'}: "
            f"R{last} is the last branch that does",
            why="the driver ignores the card and says so in the kernel's log alone (`legacy`)",
            where=("PCI bus", "nvml"),
            affects=("training",),
            remedies=(_install_and_hold(hardware, past or every),),
        )
    if early:
        needs = max((first_driver(card.capability) or "" for card in early if card.capability), default="")
        yield Finding(
            id="driver.too_old_for_card",
            severity=severity,
            what=f"driver {version} does not know {names(early)} yet: it needs {needs} or newer",
            why="the driver leaves the card out, and training does not see it",
            where=("PCI bus", "nvml"),
            affects=("training",),
            remedies=(install_driver(hardware, every),),
        )


def _install_and_hold(hardware: Hardware, cards: Sequence[Card]) -> Remedy:
    """The driver, and that updates do not replace it by a newer branch again."""
    remedy = install_driver(hardware, cards)
    held = tuple(line.replace("apt-get install", "apt-mark hold") for line in remedy.commands)
    return replace(remedy, what=f"{remedy.what}; keep updates from replacing it again", commands=remedy.commands + held)


def _fits(hardware: Hardware, cards: tuple[Card, ...]) -> Finding:
    listed = [card for card in cards if card.listed]
    driver = f"driver {hardware.driver.version}" if hardware.driver.version else "a driver of unknown version"
    return Finding(
        id="driver.fits",
        severity=Severity.OK,
        what=f"{driver} drives {names(listed) or 'no card here'}",
        where=("nvml",),
    )


def _branch(hardware: Hardware, cards: tuple[Card, ...], today: date) -> Iterator[Finding]:
    version = hardware.driver.version
    row = branch_row(version) if version else None
    if version is None or row is None:
        return
    ended = support_ended(row, today)
    advised = recommended_branch([card.capability for card in cards if card.capability is not None])
    better = ended and branch_of(version) != advised
    until = f" in {row['eol']}" if row["eol"] else ""
    yield Finding(
        id="driver.branch_ended" if ended else "driver.branch",
        severity=Severity.NOTE if better else Severity.OK,
        what=f"driver {version} is of branch R{row['branch']}, whose support ended{until}"
        if ended
        else f"driver {version} is of branch R{row['branch']} ({row['kind']}), supported until {row['eol']}",
        why=f"it trains as before and gets no repairs of security holes; R{advised} drives the same cards"
        if better
        else "",
        where=("nvml",),
        remedies=(install_driver(hardware, cards),) if better else (),
    )


def _misleading_cuda(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    """nvidia-smi's CUDA version, where it invites a torch without code for the card."""
    shown = hardware.driver.cuda_version
    old = [card for card in cards if card.listed and card.capability and card.capability < (7, 5)]
    if not old or not shown or tuple(map(int, shown.split("."))) < CUDA_13:
        return
    torch = hardware.software.torch
    has_code = torch is not None and all(
        wheel_supports(torch.arch_list, card.capability, cuda=torch.cuda) for card in old if card.capability
    )
    capabilities = ", ".join(sorted({capability_text(card.capability) for card in old if card.capability}))
    yield Finding(
        id="driver.cuda_version_misleads",
        severity=Severity.OK if has_code else Severity.NOTE,
        what=f"nvidia-smi shows CUDA {shown}, and nothing built for CUDA 13 has code for {names(old)} ({capabilities})",
        why="that number is what the driver accepts, not what the card runs: choose torch by compute capability",
        where=("nvml",),
        affects=("installation",),
    )


def _recorded(hardware: Hardware) -> date:
    try:
        return date.fromisoformat((hardware.recorded_at or "")[:10])
    except ValueError:
        return date.today()


def _places(cards: list[Card]) -> str:
    return ", ".join(card.where for card in cards)


CHECKS: tuple[Check, ...] = (
    Check(id="driver", question="does the NVIDIA driver drive every card, and is it whole?", run=check_driver),
    *kernel_module.CHECKS,
    *nvml.CHECKS,
)
