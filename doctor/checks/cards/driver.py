"""The NVIDIA driver: loaded, consistent, of a branch and with a kernel module that support the cards; and NVML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from rl_compat.capability.binaries import TEGRA, wheel_supports
from rl_compat.doctor.checks.cards.visible_devices import hides_every_gpu
from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import on_the_cpu, pip_install
from rl_compat.doctor.tables.cards import Card, all_cards, device_ids, names
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
from rl_compat.doctor.tables.rows import Capability, capability_text
from rl_compat.doctor.tables.target import has_a_build, trainable_cards
from rl_compat.hardware.types import Hardware

CUDA_13 = (13, 0)
WSL_LIBRARIES = "/usr/lib/wsl/"
VERSION_FILE = "/proc/driver/nvidia/version"
INTEGRATED = TEGRA | {(11, 0)}


def check_driver(hardware: Hardware, *, today: date | None = None) -> Iterator[Finding]:
    """Nothing without an NVIDIA card or driver. `today` defaults to the day of the recording."""
    driver, cards = hardware.driver, all_cards(hardware)
    if hardware.emulated is not None or not (cards or driver.version or driver.module_version):
        return
    if hardware.host.wsl:
        yield _under_wsl(hardware)
        return
    apart = [card for card in cards if card.capability and _outlived(card.capability, cards)]
    if apart:
        cards = tuple(card for card in cards if card not in apart)
        yield _no_common_driver(hardware, apart, cards)
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
    return finding(
        "driver.linux_in_wsl",
        f"`libcuda.so.1` comes from `{library}`, not from `{WSL_LIBRARIES}lib`",
        remedy("windows_library_first"),
        remedy("remove_linux_driver"),
    )


def _mismatch(hardware: Hardware) -> Iterator[Finding]:
    """Driver libraries of one version and a kernel module of another."""
    driver = hardware.driver
    reported = "version mismatch" in (driver.nvml_error or "").lower()
    module = driver.module_version or driver.version or "of an unknown version"
    library = driver.version if driver.version not in (None, module) else None
    if not reported and library is None:
        return
    ways = ("restart_container",) if hardware.host.container else ("restart_for_module", "reload_module")
    yield finding(
        "driver.mismatch",
        f"the kernel module of the driver is {module}, its libraries are {library or 'of another version'}"
        + (f": {driver.nvml_error}" if reported else ""),
        *map(remedy, ways),
    )


def _outlived(capability: Capability, cards: Sequence[Card]) -> bool:
    """Whether the last driver of a card is older than the first of another one."""
    last = last_branch(capability)
    firsts = [first for card in cards if card.capability and (first := first_driver(card.capability)) is not None]
    return last is not None and any(branch_of(first) > last for first in firsts)


def _no_common_driver(hardware: Hardware, old: Sequence[Card], others: Sequence[Card]) -> Finding:
    lasts = [last for card in old if card.capability and (last := last_branch(card.capability)) is not None]
    listed = any(card.listed for card in others)
    return finding(
        "driver.no_common",
        f"no driver supports both {names(old)}, for which R{min(lasts)} is the last, and {names(others)}",
        *(() if listed else (remedy("second_machine", cards=names(old)),)),
        severity=Severity.NOTE if listed else Severity.WARNING,
    )


def _missing(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    without = [card for card in cards if why_unlisted(hardware, card) == "no_driver"]
    if not without:
        return
    yield finding(
        "driver.missing",
        f"{names(without)} is installed ({', '.join(card.where for card in without)}) but no NVIDIA driver is loaded",
        install_driver(hardware, [card for card in trainable_cards(hardware) if card in without] or without),
        remedy("see_unloaded"),
    )


def _unfit(hardware: Hardware, cards: tuple[Card, ...]) -> Iterator[Finding]:
    """Cards that the loaded driver no longer supports, or does not support yet."""
    version = hardware.driver.module_version or hardware.driver.version or ""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    past = [card for card in cards if why_unlisted(hardware, card) == "legacy"]
    early = [card for card in cards if why_unlisted(hardware, card) == "driver_too_old"]
    every = [card for card in cards if card.capability is not None]
    useless = past and not any(card.capability and has_a_build(hardware, card.capability) for card in past)
    if past or "legacy" in (hardware.driver.nvml_error or "").lower():
        unused = useless and (hardware.devices or hides_every_gpu(hardware))
        hold = _install_and_hold(hardware, past or every)
        lasts = [last_branch(card.capability) or 0 for card in past if card.capability]
        yield finding(
            "driver.legacy",
            f"driver {version or 'of unknown version'} no longer supports {names(past) or 'this card'}: "
            f"R{min(lasts, default=recommended_branch(()))} is the last branch that does",
            *(() if unused else (on_the_cpu(hardware, "no torch supports this card") if useless else hold,)),
            severity=Severity.NOTE if unused else severity,
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
    if not ended:
        yield ok("driver.branch", f"{kind} ({row['kind']}), supported until {row['eol']}", "nvml")
        return
    yield finding(
        "driver.branch_ended",
        f"{kind}, whose support ended{until}",
        *((install_driver(hardware, cards),) if better else ()),
        severity=Severity.NOTE if better else Severity.OK,
        why=f"it still works but gets no security fixes; R{advised} supports the same cards" if better else "",
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
    cards = [card for card in trainable_cards(hardware) if card.capability is not None]
    if not cards or hardware.host.wsl:
        return
    old = [card for card in cards if card.capability and needed_module(card.capability) == "proprietary"]
    new = [card for card in cards if card.capability and needed_module(card.capability) == "open"]
    module = hardware.driver.kernel_module
    if old and new and not all(card.listed for card in (*old, *new)):
        yield _no_common_module(hardware, old, new)
    elif module is not None:
        wrong = [card for card in cards if why_unlisted(hardware, card) == f"{module}_module"]
        needed = f", which {names(old or new)} needs" if (old or new) else ""
        fits = ok("kernel_module.fits", f"the {module} kernel module is loaded{needed}", VERSION_FILE)
        yield _wrong_module(hardware, module, wrong) if wrong else fits


def _wrong_module(hardware: Hardware, module: str, cards: list[Card]) -> Finding:
    rule = {"open": "supports cards from compute capability 7.5 on", "proprietary": "does not support Blackwell cards"}
    listed = ", ".join(f"{card.name} has {capability_text(card.capability)}" for card in cards if card.capability)
    return finding(
        "kernel_module.open_below_7_5" if module == "open" else "kernel_module.proprietary_on_blackwell",
        f"the {module} kernel module is loaded, which {rule[module]}: {listed}",
        install_driver(hardware, cards),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )


def _no_common_module(hardware: Hardware, old: list[Card], new: list[Card]) -> Finding:
    module = hardware.driver.kernel_module
    left_out = new if module == "proprietary" else old
    loaded = f"; the {module} one is loaded, without support for {names(left_out)}" if module else ""
    return finding(
        "kernel_module.no_common",
        f"{names(old)} needs the proprietary kernel module and {names(new)} needs the open one{loaded}",
        remedy("second_machine", cards=names(left_out)),
        remedy("virtual_machine", cards=names(left_out)),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )


def check_nvml(hardware: Hardware) -> Iterator[Finding]:
    """Whether NVML, the driver's own interface, answers. Training does not need it, the doctor does.

    Nothing without a card or a driver, or if the driver itself is at fault.
    """
    driver = hardware.driver
    if hardware.emulated is not None or not (all_cards(hardware) or driver.version):
        return
    error = driver.nvml_error
    if error is None:
        devices = (*hardware.devices, *hardware.hidden_devices)
        through_smi = any("nvidia-smi" in device.sources.values() for device in devices)
        smi = ok("nvml.answers", "nvidia-smi answers; the package `nvidia-ml-py` is not used", "nvidia-smi")
        yield smi if through_smi else ok("nvml.answers", "NVML answers", "nvml")
    elif "version mismatch" not in error.lower() and "legacy" not in error.lower():
        yield _no_answer(hardware, error)


def _no_answer(hardware: Hardware, error: str) -> Finding:
    """Without devices `gpu` or `driver` reports the failure, except of a container that lost its cards."""
    case, *remedies = _why_silent(hardware, error)
    from_cuda = "; the facts about the GPUs come from CUDA" if hardware.devices else ""
    what = f"NVML does not answer ({error}){from_cuda}"
    if case == "capability":
        value = hardware.environment["NVIDIA_DRIVER_CAPABILITIES"]
        what = f"NVML is not in this container: NVIDIA_DRIVER_CAPABILITIES=`{value}` lacks `utility`"
    severity = Severity.WARNING if hardware.devices else Severity.OK
    by_devices = {"not_permitted": severity, "silent": severity, "container_lost": severity or Severity.FAILURE}
    return finding(f"nvml.{case}", what, *remedies, severity=by_devices.get(case), affects=device_ids(hardware.devices))


def _why_silent(hardware: Hardware, error: str) -> tuple[str, *tuple[Remedy, ...]]:
    """The case and its remedies."""
    lower, container = error.lower(), hardware.host.container
    capabilities = hardware.environment.get("NVIDIA_DRIVER_CAPABILITIES", "all").replace(" ", "").split(",")
    if any(device.compute_capability in INTEGRATED for device in hardware.devices):
        return ("integrated",)
    if "not installed" in lower and "nvidia-ml-py" in lower:
        return "not_installed", pip_install(hardware, "install NVIDIA's Python package for NVML", "nvidia-ml-py")
    if hardware.host.wsl:
        return "under_wsl", remedy("windows_library"), remedy("update_windows_driver")
    if "permission" in lower:
        return "not_permitted", remedy("see_permissions")
    if container and "utility" not in capabilities and "all" not in capabilities:
        return "capability", remedy("add_utility")
    if "unknown error" in lower and container:
        return "container_lost", remedy("name_devices"), remedy("use_cgroupfs")
    return "silent", remedy("see_driver_message")
