"""Which GPUs this process has, and what keeps it from the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from rl_compat.doctor.checks.cards import visible_devices
from rl_compat.doctor.checks.cards.device_nodes import check_device_nodes
from rl_compat.doctor.checks.driver import driver, nvml
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, finding, ok
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import Card, all_cards, computing, device_ids, names
from rl_compat.doctor.tables.drivers import install_driver, why_unlisted
from rl_compat.doctor.tables.rows import capability_text
from rl_compat.doctor.tables.target import has_a_build
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes

EXCLUSIVE = ("exclusive_process", "exclusive_thread")
LOST = re.compile(r"GPU is lost|fall(?:en|s)? off the bus|fell off the bus|unable to determine the device handle", re.I)
HUNG = re.compile(r"no answer within|timed out|did not answer", re.I)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_gpu(hardware: Hardware) -> Iterator[Finding]:
    """The GPUs that CUDA shows, or why it shows none."""
    if hardware.emulated is not None:
        yield ok("gpu.emulated", f"`{hardware.emulated}` is emulated")
        return
    found = [
        *_visible(hardware),
        *check_compute_mode(hardware),
        *_hidden(hardware),
        *_unshown(hardware),
        *check_pci_cards(hardware),
        *check_card_health(hardware),
        *check_device_nodes(hardware),
    ]
    yield from found
    if not hardware.devices and max((finding.severity for finding in found), default=0) < Severity.WARNING:
        yield _none(hardware)


def _visible(hardware: Hardware) -> Iterator[Finding]:
    if not hardware.devices:
        return
    listed = ", ".join(
        f"cuda:{device.index} {device.name} ({capability_text(device.compute_capability)}, "
        f"{format_bytes(device.memory_total_bytes)})"
        for device in hardware.devices
    )
    where = sorted({source for device in hardware.devices for source in device.sources.values()})
    what = f"{len(hardware.devices)} visible: {listed}"
    yield ok("gpu.visible", what, *where, affects=device_ids(hardware.devices))


def _hidden(hardware: Hardware) -> Iterator[Finding]:
    value = hardware.environment.get(VISIBLE)
    hidden = [device for device in hardware.hidden_devices if not _unusable(device)]
    if value is None or not hidden or (not hardware.devices and not visible_devices.means_no_gpu(value)):
        return
    what = f"{VISIBLE}=`{value}` hides {'some GPUs' if hardware.devices else 'every GPU'}: {names(hidden)}"
    if hardware.devices or not any(has_a_build(hardware, device.compute_capability) for device in hidden):
        without = "" if hardware.devices else "; no torch supports them"
        yield ok("gpu.hidden", what + without, "nvml", VISIBLE)
        return
    yield finding("gpu.all_hidden", what, unset(VISIBLE))


def _unshown(hardware: Hardware) -> Iterator[Finding]:
    """Cards that NVML lists and CUDA does not, without being told to. `mig` reports MIG mode without slices."""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    unexplained = []
    for device in hardware.hidden_devices:
        if device.compute_mode == "prohibited":
            yield _prohibited(hardware, device, f"GPU {device.index} of nvidia-smi,", severity)
        elif device.mig_slices is None and VISIBLE not in hardware.environment:
            unexplained.append(device)
    if unexplained and not any(device.mig_profile for device in hardware.devices):
        yield finding(
            "gpu.not_shown",
            f"NVML lists {names(unexplained)}, but CUDA does not show it although {VISIBLE} is not set",
            shell("see what the driver logged about it", "sudo dmesg | grep -iE 'nvrm|xid'", "nvidia-smi -L"),
            severity=severity,
        )


def check_compute_mode(hardware: Hardware) -> Iterator[Finding]:
    """Visible cards whose compute mode excludes other processes."""
    for device in hardware.devices:
        id = f"cuda:{device.index}"
        others = [str(process.pid) for process in computing(device)]
        what = f"{id} `{device.name}` accepts a single process (compute mode `{device.compute_mode}`)"
        if device.compute_mode == "prohibited":
            yield _prohibited(hardware, device, id, Severity.FAILURE)
        elif device.compute_mode in EXCLUSIVE and others:
            look = shell("see who owns the process", f"ps -o pid,user,etime,args -p {','.join(others)}")
            yield finding(
                "gpu.taken",
                f"{what}, and process {', '.join(others)} uses it",
                _set_mode(hardware, device),
                look,
                affects=(id, "training"),
            )
        elif device.compute_mode in EXCLUSIVE:
            yield finding("gpu.exclusive", what, _set_mode(hardware, device), affects=(id, "rollout"))


def keeps_out(device: Device) -> bool:
    """Whether the compute mode alone explains that a new program cannot use the card."""
    return device.compute_mode == "prohibited" or (device.compute_mode in EXCLUSIVE and bool(computing(device)))


def _prohibited(hardware: Hardware, device: Device, where: str, severity: Severity) -> Finding:
    return finding(
        "gpu.prohibited",
        f"{where} `{device.name}` is in compute mode `prohibited`",
        _set_mode(hardware, device),
        severity=severity,
    )


def _set_mode(hardware: Hardware, device: Device) -> Remedy:
    index = device.nvml_index if device.nvml_index is not None else device.index
    if hardware.host.container:
        return Remedy("on the host, set the compute mode of the card to `DEFAULT`", Step.SYSTEM)
    command = f"sudo nvidia-smi -i {device.uuid or index} -c DEFAULT"
    return Remedy("allow every process to use the card", Step.SYSTEM, (command,))


def check_pci_cards(hardware: Hardware) -> Iterator[Finding]:
    """Cards on the PCI bus only, unless the driver or its kernel module explains them."""
    if hardware.host.container and not hardware.devices:
        return
    by_reason: dict[str | None, list[Card]] = {}
    for card in all_cards(hardware):
        by_reason.setdefault(why_unlisted(hardware, card), []).append(card)
    if "nouveau" in by_reason:
        yield _nouveau(hardware, by_reason["nouveau"])
    if "reserved" in by_reason:
        yield _reserved(hardware, by_reason["reserved"])
    withheld = hardware.host.container or hardware.driver.closed_device_nodes
    silent = by_reason.get("silent", []) if hardware.driver.nvml_error is None and not withheld else []
    if "refused" in by_reason or (silent and not any(LOST.search(text) for text in hardware.warnings)):
        yield _refused(hardware, [*by_reason.get("refused", []), *silent])


def _nouveau(hardware: Hardware, cards: list[Card]) -> Finding:
    return finding(
        "gpu.nouveau",
        f"{names(cards)} at {_places(cards)} uses the kernel's own driver `{cards[0].kernel_driver}`",
        install_driver(hardware, cards),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )


def _reserved(hardware: Hardware, cards: list[Card]) -> Finding:
    remedy = Remedy(
        "remove the id of the card from `vfio-pci.ids` in the kernel command line or in /etc/modprobe.d, then restart",
        Step.DRIVER,
        ("grep -rn vfio /etc/modprobe.d /proc/cmdline",),
    )
    return finding(
        "gpu.reserved",
        f"{names(cards)} at {_places(cards)} is reserved for a virtual machine (`{cards[0].kernel_driver}`)",
        *(() if hardware.devices else (remedy,)),
        severity=Severity.OK if hardware.devices else Severity.WARNING,
    )


def _refused(hardware: Hardware, cards: list[Card]) -> Finding:
    version = hardware.driver.module_version or hardware.driver.version
    look = shell(
        "see why; `BAR1 is 0M` or `can't assign` means too little address space", "sudo dmesg | grep -iE 'nvrm|bar '"
    )
    space = Remedy(
        "enable `Above 4G decoding` in the firmware setup and disable its compatibility mode (CSM): "
        "a data-centre card needs 16 to 64 GiB of address space",
        Step.SYSTEM,
    )
    return finding(
        "gpu.refused",
        f"driver {version} is loaded but does not list {names(cards)} at {_places(cards)}",
        *((look, space) if any(card.large_bar for card in cards) else (look,)),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )


def check_card_health(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding about a card that stopped answering; `torch_driver` reports CUDA errors of listed cards."""
    torch = hardware.software.torch
    errors = [hardware.driver.nvml_error, *(text for text in hardware.warnings if text.startswith("NVML"))]
    if torch and not hardware.devices:
        errors.append(torch.cuda_error)
    severity = Severity.WARNING if hardware.devices and torch and torch.cuda_available else Severity.FAILURE
    lost = next((text for text in errors if text and LOST.search(text)), None)
    hung = next((text for text in errors if text and HUNG.search(text)), None)
    log = shell("read the error number (Xid) that the driver logged", "sudo dmesg | grep -iE 'xid|nvrm'")
    if lost is not None:
        yield finding(
            "gpu.lost",
            f"the driver lost a card: {lost}",
            log,
            Remedy("check cable, airflow and riser, then restart the machine", Step.SYSTEM),
            severity=severity,
        )
    elif hung is not None:
        yield finding(
            "gpu.hung",
            f"the driver does not answer: {hung}",
            log,
            Remedy("restart the machine; until then `nvidia-smi` hangs too", Step.SYSTEM),
            severity=severity,
        )


def _none(hardware: Hardware) -> Finding:
    """No GPU: CPU mode, or the finding that explains it."""
    others = chain(
        driver.check_driver(hardware),
        driver.check_kernel_module(hardware),
        visible_devices.check_visible_devices(hardware),
        nvml.check_nvml(hardware),
    )
    causes = [other.id for other in others if other.severity >= Severity.WARNING]
    cards = all_cards(hardware)
    causes += ["mig.no_slices" for device in hardware.hidden_devices if _unusable(device)]
    if not causes and (cards or hardware.driver.version):
        return _unreachable(hardware, cards)
    what = f"no usable GPU, see `{causes[0]}`: CPU mode until that is fixed" if causes else "no NVIDIA GPU: CPU mode"
    wsl = Remedy(
        "if the machine has an NVIDIA card, update its driver in Windows, then run `wsl --update` and "
        "`wsl --shutdown` there; `wsl --list --verbose` must show version 2 for this distribution",
        Step.DRIVER,
    )
    return finding(
        "gpu.none",
        what,
        *((wsl,) if hardware.host.wsl and not causes else ()),
        severity=Severity.OK if causes else Severity.NOTE,
        where=("nvml", "PCI bus") if hardware.pci_gpus is not None else ("nvml",),
    )


def _unreachable(hardware: Hardware, cards: tuple[Card, ...]) -> Finding:
    what = f"{names(cards)} cannot be reached" if cards else f"driver {hardware.driver.version} lists no card"
    error = hardware.driver.nvml_error
    return finding(
        "gpu.unreachable",
        f"{what}{f': {error}' if error else ''}",
        shell("see the driver's own message", "nvidia-smi", "sudo dmesg | grep -iE 'nvrm|xid'"),
        severity=Severity.FAILURE if cards else Severity.WARNING,
    )


def _unusable(device: Device) -> bool:
    """Whether CUDA cannot use a card whatever CUDA_VISIBLE_DEVICES contains."""
    return device.mig_slices == 0 or device.compute_mode == "prohibited"


def _places(cards: list[Card]) -> str:
    return ", ".join(card.where for card in cards)
