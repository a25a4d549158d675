"""MIG: a GPU cut into slices, of which a process has one."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.tables.rows import Row
from rl_compat.doctor.tables.torch import read_knowledge
from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes


def check_mig(hardware: Hardware) -> Iterator[Finding]:
    """Nothing on a machine without a GPU in MIG mode."""
    if hardware.emulated is not None:
        return
    for device in hardware.devices:
        if device.mig_profile is not None:
            yield _slice(device)
            if (device.mig_slices or 0) > 1:
                yield _siblings(device)
    for device in hardware.hidden_devices:
        if device.mig_slices == 0:
            yield _without_slices(hardware, device)
        elif device.mig_slices and not any(other.mig_profile for other in hardware.devices):
            yield _unused(hardware, device)


def share_of(name: str, profile: str) -> str | None:
    """`3 of 7` computing units that a profile has of that GPU; None where the table does not list them."""
    row = _profiles(name)
    number = profile.partition("g.")[0]
    return f"{number} of {row['compute_slices']}" if row and number.isdigit() else None


def _profiles(name: str) -> Row | None:
    gpu = find_gpu(name)
    rows = read_knowledge("mig")["profiles"]
    return next((row for row in rows if gpu is not None and gpu.id in row["gpus"]), None)


def _slice(device: Device) -> Finding:
    share = share_of(device.name, device.mig_profile or "")
    return Finding(
        id="mig.slice",
        severity=Severity.OK,
        what=f"cuda:{device.index} is a slice `{device.mig_profile}` of `{device.name.partition(' MIG')[0]}`"
        + (f": {share} computing units" if share else "")
        + f", {format_bytes(device.memory_total_bytes)}",
        why="kernels and builds of torch are those of the whole GPU; memory and speed are the slice's",
        where=("nvml", "cuda"),
        affects=(f"cuda:{device.index}",),
    )


def _siblings(device: Device) -> Finding:
    return Finding(
        id="mig.one_slice",
        severity=Severity.OK,
        what=f"the GPU behind cuda:{device.index} has {device.mig_slices} slices, of which a process sees one",
        why="slices cannot reach each other: no NCCL and no peer access between them. One run for each slice works",
        where=("nvml",),
        affects=("several GPUs",),
    )


def _without_slices(hardware: Hardware, device: Device) -> Finding:
    row = _profiles(device.name)
    off = Remedy(
        what="leave MIG mode, with no program on the card; some systems want a restart",
        step=Step.SYSTEM,
        commands=(f"sudo nvidia-smi -i {device.index} -mig 0",),
        sure=Sureness.UNSURE,
    )
    largest = row["profiles"][-1] if row else None
    make = Remedy(
        what="make one slice of the whole GPU" if largest else "make slices; this lists their kinds",
        step=Step.SYSTEM,
        commands=(f"sudo nvidia-smi mig -i {device.index} -cgi {largest} -C",)
        if largest
        else (f"sudo nvidia-smi mig -i {device.index} -lgip",),
        sure=Sureness.UNSURE,
    )
    return Finding(
        id="mig.no_slices",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=f"GPU {device.index} `{device.name}` is in MIG mode and has no slice",
        why="CUDA uses slices alone in that mode, so that this GPU cannot be used at all",
        where=("nvml",),
        affects=("training",),
        remedies=tuple(
            Remedy(what=f"on the host: {remedy.what}", step=remedy.step) if hardware.host.container else remedy
            for remedy in (off, make)
        ),
    )


def _unused(hardware: Hardware, device: Device) -> Finding:
    return Finding(
        id="mig.unused_slices",
        severity=Severity.OK,
        what=f"GPU {device.index} `{device.name}` has {device.mig_slices} slices, and CUDA shows none of them",
        why="a slice is chosen by its name: `CUDA_VISIBLE_DEVICES=MIG-…`",
        where=("nvml",),
    )


CHECKS: tuple[Check, ...] = (Check(id="mig", question="is a GPU cut into slices, and usable?", run=check_mig),)
