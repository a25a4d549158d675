"""Checks of the cards' memory: how much there is, who holds it, and the way into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_compat.doctor.checks import mig, pcie
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import computing
from rl_compat.hardware.types import Device, Hardware, Process
from rl_compat.units import GIB, format_bytes

SMALL_BYTES = 4 * GIB
NOTABLE_FRACTION, LARGE_FRACTION = 0.1, 0.25
"shares of a card in use from which it is mentioned, and from which it is reported whoever holds it"
NOTABLE_BYTES = GIB


def check_device_memory(hardware: Hardware) -> Iterator[Finding]:
    """One finding for all cards that are fine, one for each that is not; nothing without a card."""
    fine = []
    for device in hardware.devices:
        found = [*_small(hardware, device), *_unknown(device), *_disagreeing(device), *_in_use(hardware, device)]
        yield from found
        if not found:
            fine.append(device)
    if fine:
        yield Finding(
            id="device_memory.free",
            severity=Severity.OK,
            what=", ".join(
                f"cuda:{device.index} has {format_bytes(device.memory_free_bytes)} free of "
                f"{format_bytes(device.memory_total_bytes)}"
                for device in fine
            ),
            where=tuple(sorted({device.sources.get("memory_free_bytes", "nvml") for device in fine})),
        )
    if hardware.emulated is None:
        yield from pcie.check_pcie(hardware)


def _small(hardware: Hardware, device: Device) -> Iterator[Finding]:
    if device.memory_total_bytes >= SMALL_BYTES:
        return
    larger = max(hardware.devices, key=lambda other: other.memory_total_bytes)
    only = larger.memory_total_bytes < SMALL_BYTES
    yield Finding(
        id="device_memory.small",
        severity=Severity.WARNING if only else Severity.OK,
        what=f"cuda:{device.index} `{device.name}` has {format_bytes(device.memory_total_bytes)}",
        why="weights, gradients, optimizer states and the rollout of a model of some hundred million parameters need "
        f"about {format_bytes(SMALL_BYTES)}: only the smallest models train here, with adapters",
        where=("nvml", "cuda"),
        affects=(f"cuda:{device.index}", "training"),
    )


def _unknown(device: Device) -> Iterator[Finding]:
    if device.sources.get("memory_free_bytes") != "rule":
        return
    yield Finding(
        id="device_memory.free_unknown",
        severity=Severity.NOTE,
        what=f"how much of the {format_bytes(device.memory_total_bytes)} of cuda:{device.index} is free is not known",
        why="plans count on all of it; what others hold shows as out of memory during the run",
        where=("nvml", "cuda"),
        affects=(f"cuda:{device.index}",),
        remedies=(shell("look yourself", "nvidia-smi"),),
    )


def _disagreeing(device: Device) -> Iterator[Finding]:
    other = device.nvml_memory_total_bytes
    if other is None:
        return
    yield Finding(
        id="device_memory.disagreement",
        severity=Severity.NOTE,
        what=f"cuda:{device.index} `{device.name}` has {format_bytes(device.memory_total_bytes)} by CUDA and "
        f"{format_bytes(other)} by NVML",
        why="plans count on CUDA's figure; the other may be that of the whole board or of another card",
        where=("cuda", "nvml"),
        affects=(f"cuda:{device.index}",),
    )


def _in_use(hardware: Hardware, device: Device) -> Iterator[Finding]:
    """Memory that other programs hold. They are named and never touched."""
    used = device.memory_total_bytes - device.memory_free_bytes
    if used < max(NOTABLE_BYTES, NOTABLE_FRACTION * device.memory_total_bytes) or device.mig_profile is not None:
        return
    others = computing(device)
    by_display = bool(device.processes) and not others
    large = used >= LARGE_FRACTION * device.memory_total_bytes
    case = "display" if by_display else "held" if others else "in_use"
    quiet = (Severity.NOTE if by_display else Severity.WARNING) if large else Severity.OK
    yield Finding(
        id=f"device_memory.{case}",
        severity=Severity.WARNING if others else quiet,
        what=f"cuda:{device.index} `{device.name}` has {format_bytes(device.memory_free_bytes)} free of "
        f"{format_bytes(device.memory_total_bytes)}: {_holders(hardware, device, used)}",
        why="plans count on what is free now, and fail when that shrinks during the run",
        where=(device.sources.get("memory_free_bytes", "nvml"),),
        affects=(f"cuda:{device.index}", "training", "rollout"),
        remedies=(*_another_card(hardware, device), *_ask(hardware, others, by_display)),
    )


def _holders(hardware: Hardware, device: Device, used: int) -> str:
    if device.processes:
        return ", ".join(_holder(process) for process in sorted(device.processes, key=lambda p: -(p.used_bytes or 0)))
    unseen = "Windows and its programs" if hardware.host.wsl else "programs outside this container"
    if hardware.host.wsl or hardware.host.container:
        return f"{format_bytes(used)} are held, by {unseen} perhaps"
    return f"by whom the other {format_bytes(used)} are held is not known"


def _holder(process: Process) -> str:
    amount = format_bytes(process.used_bytes) if process.used_bytes else "an unknown amount"
    return f"process {process.pid}{f' ({process.name})' if process.name else ''} holds {amount}"


def _another_card(hardware: Hardware, device: Device) -> Iterator[Remedy]:
    """The card with most free memory, where it has plainly more than this one."""
    best = max(hardware.devices, key=lambda other: other.memory_free_bytes)
    if best.memory_free_bytes > device.memory_free_bytes * 3 // 2 and best.uuid:
        free = format_bytes(best.memory_free_bytes)
        yield shell(f"train on `{best.name}`, which has {free} free", f"export CUDA_VISIBLE_DEVICES={best.uuid}")


def _ask(hardware: Hardware, others: Sequence[Process], by_display: bool) -> tuple[Remedy, ...]:
    if others and not hardware.host.container and not hardware.host.wsl:
        pids = ",".join(str(process.pid) for process in others)
        return (shell("see whose it is, and wait or ask", f"ps -o pid,user,etime,args -p {pids}"),)
    if by_display:
        return (Remedy(what="draw the desktop on another card, or log in without one", step=Step.SYSTEM),)
    return (shell("see what holds it, and wait or ask", "nvidia-smi"),)


CHECKS: tuple[Check, ...] = (
    Check(id="device_memory", question="how much memory do the GPUs have, and who holds it?", run=check_device_memory),
    *mig.CHECKS,
)
