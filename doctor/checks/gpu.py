"""Checks of which GPUs this process has, and what keeps the others from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rl_compat.doctor.checks import (
    card_health,
    compute_mode,
    device_nodes,
    driver,
    kernel_module,
    nvml,
    pci_cards,
    visible_devices,
)
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import Card, all_cards, capability_text, names
from rl_compat.doctor.tables.target import has_a_build
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes


def check_gpu(hardware: Hardware) -> Iterator[Finding]:
    """The GPUs that CUDA shows, or why it shows none."""
    if hardware.emulated is not None:
        yield Finding(id="gpu.emulated", severity=Severity.OK, what=f"`{hardware.emulated}` is emulated")
        return
    found = [
        *_visible(hardware),
        *compute_mode.check_compute_mode(hardware),
        *_hidden(hardware),
        *_unshown(hardware),
        *pci_cards.check_pci_cards(hardware),
        *card_health.check_card_health(hardware),
        *device_nodes.check_device_nodes(hardware),
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
    yield Finding(
        id="gpu.visible",
        severity=Severity.OK,
        what=f"{len(hardware.devices)} visible: {listed}",
        where=tuple(sorted({source for device in hardware.devices for source in device.sources.values()})),
        affects=tuple(f"cuda:{device.index}" for device in hardware.devices),
    )


def _hidden(hardware: Hardware) -> Iterator[Finding]:
    value = hardware.environment.get("CUDA_VISIBLE_DEVICES")
    hidden = [device for device in hardware.hidden_devices if _kept_out(device) is None]
    if value is None or not hidden or (not hardware.devices and not visible_devices.means_no_gpu(value)):
        return
    none_left = not hardware.devices and any(has_a_build(hardware, device.compute_capability) for device in hidden)
    yield Finding(
        id="gpu.all_hidden" if none_left else "gpu.hidden",
        severity=Severity.WARNING if none_left else Severity.OK,
        what=f"CUDA_VISIBLE_DEVICES=`{value}` hides {'some GPUs' if hardware.devices else 'every GPU'}: {names(hidden)}"
        + ("" if hardware.devices or none_left else ", for which there is no torch"),
        why="training runs on the CPU, many times slower" if none_left else "",
        where=("nvml", "CUDA_VISIBLE_DEVICES"),
        affects=("training", "rollout") if none_left else (),
        remedies=(unset("CUDA_VISIBLE_DEVICES"),) if none_left else (),
    )


def _unshown(hardware: Hardware) -> Iterator[Finding]:
    """Cards that NVML lists and CUDA does not, though nobody asked for it. MIG mode without slices is `mig`'s."""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    unexplained = []
    for device in hardware.hidden_devices:
        if device.compute_mode == "prohibited":
            yield compute_mode.prohibited(hardware, device, f"nvidia-smi's {device.index}", severity)
        elif device.mig_slices is None and "CUDA_VISIBLE_DEVICES" not in hardware.environment:
            unexplained.append(device)
    if unexplained and not _slices_are_used(hardware):
        yield Finding(
            id="gpu.not_shown",
            severity=severity,
            what=f"NVML lists {names(unexplained)}, which CUDA does not show although CUDA_VISIBLE_DEVICES is not set",
            why="CUDA leaves out a card that it cannot start: one lost by the bus, of another driver branch, or "
            "kept from this process by a scheduler",
            where=("nvml", "cuda"),
            affects=("training",),
            remedies=(
                shell("see what the driver wrote about it", "sudo dmesg | grep -iE 'nvrm|xid'", "nvidia-smi -L"),
            ),
        )


def _none(hardware: Hardware) -> Finding:
    """No GPU: the CPU mode, or the finding that says why."""
    others = chain(
        driver.check_driver(hardware),
        kernel_module.check_kernel_module(hardware),
        visible_devices.check_visible_devices(hardware),
    )
    causes = [other.id for other in (*others, *nvml.check_nvml(hardware)) if other.severity >= Severity.WARNING]
    cards = all_cards(hardware)
    causes += ["mig.no_slices" for device in hardware.hidden_devices if _kept_out(device)]
    if causes:
        what = f"no GPU can be used as things are, see `{causes[0]}`: CPU mode until then"
    elif cards or hardware.driver.version:
        return _unreachable(hardware, cards)
    else:
        what = "no NVIDIA GPU: CPU mode"
    return Finding(
        id="gpu.none",
        severity=Severity.OK if causes else Severity.NOTE,
        what=what,
        why="models of up to some hundred million parameters train here, for trying things out",
        where=("nvml", "PCI bus") if hardware.pci_gpus is not None else ("nvml",),
        affects=("training", "rollout"),
        remedies=(_under_wsl(),) if hardware.host.wsl and not causes else (),
    )


def _unreachable(hardware: Hardware, cards: tuple[Card, ...]) -> Finding:
    what = f"{names(cards)} cannot be reached" if cards else f"driver {hardware.driver.version} lists no card"
    error = hardware.driver.nvml_error
    return Finding(
        id="gpu.unreachable",
        severity=Severity.FAILURE if cards else Severity.WARNING,
        what=f"{what}{f': {error}' if error else ''}",
        why="training runs on the CPU until the driver answers",
        where=("PCI bus", "nvml"),
        affects=("training", "rollout"),
        remedies=(shell("see what the driver itself says", "nvidia-smi", "sudo dmesg | grep -iE 'nvrm|xid'"),),
    )


def _under_wsl() -> Remedy:
    return Remedy(
        what="if the machine has an NVIDIA card: update its driver in Windows, then `wsl --update` and "
        "`wsl --shutdown` there; `wsl --list --verbose` must show version 2 for this system",
        step=Step.DRIVER,
    )


def _kept_out(device: Device) -> str | None:
    """What keeps CUDA from a card whatever CUDA_VISIBLE_DEVICES says."""
    return "mig" if device.mig_slices == 0 else device.compute_mode if device.compute_mode == "prohibited" else None


def _slices_are_used(hardware: Hardware) -> bool:
    """Whether a MIG slice is in use, beside which CUDA shows nothing else."""
    return any(device.mig_profile for device in hardware.devices)


CHECKS: tuple[Check, ...] = (
    Check(id="gpu", question="which GPUs does CUDA show this process?", run=check_gpu),
    *visible_devices.CHECKS,
)
