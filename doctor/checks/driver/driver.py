"""The NVIDIA driver: loaded, consistent, of a branch and with a kernel module that support the cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from rl_compat.capability.binaries import wheel_supports
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding, ok
from rl_compat.doctor.remedies import WSL_LIBRARY_PATH, shell
from rl_compat.doctor.tables.cards import Card, all_cards, names
from rl_compat.doctor.tables.drivers import (
    branch_of,
    branch_row,
    first_driver,
    install_driver,
    last_branch,
    needed_module,
    recommended_branch,
    support_ended,
    why_unlisted,
)
from rl_compat.doctor.tables.rows import capability_text
from rl_compat.hardware.types import Hardware

CUDA_13 = (13, 0)
WSL_LIBRARIES = "/usr/lib/wsl/"
VERSION_FILE = "/proc/driver/nvidia/version"


def check_driver(hardware: Hardware, *, today: date | None = None) -> Iterator[Finding]:
    """Nothing without an NVIDIA card or driver. `today` defaults to the day of the recording."""
    driver, cards = hardware.driver, all_cards(hardware)
    if hardware.emulated is not None or not (cards or driver.version or driver.module_version):
        return
    if hardware.host.wsl:
        yield _under_wsl(hardware)
        return
    found = [*_mismatch(hardware), *_missing(hardware, cards), *_unfit(hardware, cards)]
    yield from found
    if not found:
        listed = names(card for card in cards if card.listed)
        version = f"driver {driver.version}" if driver.version else "a driver of unknown version"
        yield ok("driver.fits", f"{version} supports {listed or 'no card here'}", "nvml")
        yield from _branch(hardware, cards, today or _recorded(hardware))
    yield from _misleading_cuda(hardware, cards)


def _under_wsl(hardware: Hardware) -> Finding:
    library = hardware.driver.cuda_library
    if library is None or library.startswith(WSL_LIBRARIES):
        supports = f", supports CUDA up to {hardware.driver.cuda_version}" if hardware.driver.cuda_version else ""
        return ok("driver.windows", f"the Windows driver is in use{supports}")
    remove = Remedy(
        "remove the Linux driver from WSL (package names as on Ubuntu)",
        Step.SYSTEM,
        ("sudo apt-get purge 'libnvidia-compute-*' 'nvidia-driver-*'",),
        Certainty.UNCERTAIN,
    )
    return finding(
        "driver.linux_in_wsl",
        f"`libcuda.so.1` comes from `{library}`, not from `{WSL_LIBRARIES}lib`",
        shell("put the Windows library first", WSL_LIBRARY_PATH),
        remove,
    )


def _mismatch(hardware: Hardware) -> Iterator[Finding]:
    """Driver libraries of one version and a kernel module of another."""
    driver = hardware.driver
    reported = "version mismatch" in (driver.nvml_error or "").lower()
    module = driver.module_version or driver.version or "of an unknown version"
    library = driver.version if driver.version not in (None, module) else None
    if not reported and library is None:
        return
    restart = Remedy("restart the machine: it then loads the module that matches the libraries", Step.DRIVER)
    reload_module = Remedy(
        "stop every program on the GPUs and the desktop, then reload the module",
        Step.DRIVER,
        ("sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia", "sudo modprobe nvidia nvidia_uvm"),
        Certainty.UNCERTAIN,
    )
    restart_container = Remedy(
        "restart the container: it still has the libraries from before the host's driver changed; "
        "if `nvidia-smi` fails on the host too, restart the host",
        Step.CONTAINER,
    )
    yield finding(
        "driver.mismatch",
        f"the kernel module of the driver is {module}, its libraries are {library or 'of another version'}"
        + (f": {driver.nvml_error}" if reported else ""),
        *((restart_container,) if hardware.host.container else (restart, reload_module)),
    )


def _missing(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    without = [card for card in cards if why_unlisted(hardware, card) == "no_driver"]
    if not without:
        return
    look = ("sudo modprobe nvidia", "sudo dmesg | tail", "dkms status")
    yield finding(
        "driver.missing",
        f"{names(without)} is installed ({', '.join(card.where for card in without)}) but no NVIDIA driver is loaded",
        install_driver(hardware, without),
        shell("if it is installed, see why it is not loaded", *look),
    )


def _unfit(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    """Cards that the loaded driver no longer supports, or does not support yet."""
    version = hardware.driver.module_version or hardware.driver.version or ""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    past = [card for card in cards if why_unlisted(hardware, card) == "legacy"]
    early = [card for card in cards if why_unlisted(hardware, card) == "driver_too_old"]
    every = [card for card in cards if card.capability is not None]
    if past or "legacy" in (hardware.driver.nvml_error or "").lower():
        lasts = [last_branch(card.capability) or 0 for card in past if card.capability]
        yield finding(
            "driver.legacy",
            f"driver {version or 'of unknown version'} no longer supports {names(past) or 'this card'}: "
            f"R{min(lasts, default=recommended_branch(()))} is the last branch that does",
            _install_and_hold(hardware, past or every),
            severity=severity,
        )
    if early:
        needs = max((first_driver(card.capability) or "" for card in early if card.capability), default="")
        yield finding(
            "driver.too_old_for_card",
            f"driver {version} does not support {names(early)} yet, which needs {needs} or newer",
            install_driver(hardware, every),
            severity=severity,
        )


def _install_and_hold(hardware: Hardware, cards: Sequence[Card]) -> Remedy:
    """Install the driver and keep updates from replacing it with a newer branch."""
    remedy = install_driver(hardware, cards)
    held = tuple(line.replace("apt-get install", "apt-mark hold") for line in remedy.commands)
    return replace(
        remedy, what=f"{remedy.what}; hold it, so that no update replaces it", commands=remedy.commands + held
    )


def _branch(hardware: Hardware, cards: tuple[Card, ...], today: date) -> Iterator[Finding]:
    version = hardware.driver.version
    row = branch_row(version) if version else None
    if version is None or row is None:
        return
    ended = support_ended(row, today)
    advised = recommended_branch([card.capability for card in cards if card.capability is not None])
    better = ended and branch_of(version) != advised
    kind = f"driver {version} is of branch R{row['branch']}"
    until = f" in {row['eol']}" if row["eol"] else ""
    yield Finding(
        "driver.branch_ended" if ended else "driver.branch",
        Severity.NOTE if better else Severity.OK,
        f"{kind}, whose support ended{until}" if ended else f"{kind} ({row['kind']}), supported until {row['eol']}",
        f"it still works but gets no security fixes; R{advised} supports the same cards" if better else "",
        where=("nvml",),
        remedies=(install_driver(hardware, cards),) if better else (),
    )


def _misleading_cuda(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    """The CUDA version of nvidia-smi, if it suggests a torch without code for the card."""
    shown = hardware.driver.cuda_version
    old = [card for card in cards if card.listed and card.capability and card.capability < (7, 5)]
    if not old or not shown or tuple(map(int, shown.split("."))) < CUDA_13:
        return
    torch = hardware.software.torch
    has_code = torch is not None and all(
        wheel_supports(torch.arch_list, card.capability, cuda=torch.cuda) for card in old if card.capability
    )
    capabilities = ", ".join(sorted({capability_text(card.capability) for card in old if card.capability}))
    yield finding(
        "driver.cuda_version_misleads",
        f"nvidia-smi shows CUDA {shown}, but no CUDA 13 build has code for {names(old)} "
        f"(compute capability {capabilities})",
        severity=Severity.OK if has_code else Severity.NOTE,
    )


def _recorded(hardware: Hardware) -> date:
    try:
        return date.fromisoformat((hardware.recorded_at or "")[:10])
    except ValueError:
        return date.today()


def check_kernel_module(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if the kind of module is not known, and under WSL, which uses the Windows driver."""
    cards = [card for card in all_cards(hardware) if card.capability is not None]
    if not cards or hardware.host.wsl:
        return
    old = [card for card in cards if card.capability and needed_module(card.capability) == "proprietary"]
    new = [card for card in cards if card.capability and needed_module(card.capability) == "open"]
    module = hardware.driver.kernel_module
    if old and new:
        yield _no_common_module(hardware, old, new)
    elif module is not None:
        wrong = [card for card in cards if why_unlisted(hardware, card) == f"{module}_module"]
        needed = f", which {names(old or new)} needs" if (old or new) else ""
        fits = ok("kernel_module.fits", f"the {module} kernel module is loaded{needed}", VERSION_FILE)
        yield _wrong_module(hardware, module, wrong) if wrong else fits


def _wrong_module(hardware: Hardware, module: str, cards: list[Card]) -> Finding:
    if module == "open":
        case, rule = "open_below_7_5", "supports cards from compute capability 7.5 on"
        why = "the open module needs a processor on the card (GSP) that older cards do not have"
    else:
        case, rule = "proprietary_on_blackwell", "does not support Blackwell cards"
        why = "from Blackwell on, NVIDIA supports its cards with the open module only"
    listed = ", ".join(f"{card.name} has {capability_text(card.capability)}" for card in cards if card.capability)
    return Finding(
        f"kernel_module.{case}",
        Severity.WARNING if hardware.devices else Severity.FAILURE,
        f"the {module} kernel module is loaded, which {rule}: {listed}",
        f"{why}; nvidia-smi prints `No devices were found`",
        where=(VERSION_FILE, "PCI bus"),
        affects=("training",),
        remedies=(install_driver(hardware, cards),),
    )


def _no_common_module(hardware: Hardware, old: list[Card], new: list[Card]) -> Finding:
    module = hardware.driver.kernel_module
    left_out = new if module == "proprietary" else old
    loaded = f"; the {module} one is loaded, without support for {names(left_out)}" if module else ""
    return finding(
        "kernel_module.no_common",
        f"{names(old)} needs the proprietary kernel module and {names(new)} needs the open one{loaded}",
        Remedy(f"move {names(left_out)} to a second machine", Step.DRIVER),
        Remedy(f"pass {names(left_out)} to a virtual machine with its own driver (vfio)", Step.DRIVER),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )
