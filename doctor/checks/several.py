"""Checks of machines with several cards: of different kinds, numbered in two ways, connected or not.

A run trains on one device today, `cuda:0`; what lies between cards concerns those who use NCCL themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.kernels import triton
from rl_compat.capability.precision import compute_dtype
from rl_compat.doctor.checks import device_order, links
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import capability_text, names
from rl_compat.doctor.tables.target import suitable_torch, target_of
from rl_compat.doctor.tables.torch import cuda_of, releases, variants
from rl_compat.doctor.tables.wheels import NoTorchBuildError, TorchInstall
from rl_compat.hardware.gpu.binaries import wheel_supports
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes

ALIKE_FRACTION = 0.9
"share of the largest memory from which cards count as equally large"


def check_mixed_devices(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for one card or for several alike."""
    devices = hardware.devices
    if hardware.emulated is not None or len(devices) < 2:
        return
    capabilities = {device.compute_capability for device in devices}
    smallest = min(device.memory_total_bytes for device in devices)
    largest = max(device.memory_total_bytes for device in devices)
    if len(capabilities) > 1:
        yield _capabilities(hardware)
        yield from _one_build(hardware)
    if smallest < ALIKE_FRACTION * largest:
        yield _memories(devices)
    if len(capabilities) > 1 or smallest < ALIKE_FRACTION * largest:
        yield from _weaker_first(devices)


def _capabilities(hardware: Hardware) -> Finding:
    """The weakest card decides in a run across all of them; what that costs."""
    devices = hardware.devices
    best = max(device.compute_capability for device in devices)
    strong = tuple(device for device in devices if device.compute_capability == best)
    weak = [device for device in devices if device.compute_capability != best]
    lost = [name for name in _features(replace(hardware, devices=strong)) if name not in _features(hardware)]
    without = f"without {', '.join(lost)}" if lost else "with the choices of the weakest"
    listed = ", ".join(f"cuda:{gpu.index} {gpu.name} ({capability_text(gpu.compute_capability)})" for gpu in devices)
    return Finding(
        id="mixed_devices.capabilities",
        severity=Severity.NOTE,
        what=f"different cards: {listed}",
        why=f"a run on one card takes cuda:0; one across them runs {without}, since {names(weak)} decides",
        where=("cuda", "nvml"),
        affects=tuple(f"cuda:{device.index}" for device in devices),
        remedies=_choose(strong, f"use {names(strong)} alone"),
    )


def _features(hardware: Hardware) -> list[str]:
    supported = {
        "bf16": compute_dtype(hardware, "bf16").supported,
        "flash attention": "flash" in sdpa_backends(hardware),
        "Triton and torch.compile": triton(hardware).supported,
    }
    return [name for name, there in supported.items() if there]


def _one_build(hardware: Hardware) -> Iterator[Finding]:
    """Whether one build of torch has code for every card."""
    try:
        build = suitable_torch(hardware)
    except NoTorchBuildError:
        return
    left_out = [device for device in hardware.devices if not _serves(build, device, target_of(hardware).machine)]
    served = [device for device in hardware.devices if device not in left_out]
    label = f"torch {build.version}+{build.variant}"
    yield Finding(
        id="mixed_devices.no_common_build" if left_out else "mixed_devices.one_build",
        severity=Severity.WARNING if left_out else Severity.OK,
        what=f"no torch for this driver and Python has code for all cards: {label} leaves out {names(left_out)}"
        if left_out
        else f"{label} has code for every card",
        why="the cards that are left out need an environment of their own" if left_out else "",
        where=("tables of torch builds",),
        affects=tuple(f"cuda:{device.index}" for device in left_out),
        remedies=_choose(served, f"hide {names(left_out)} from this environment") if left_out else (),
    )


def _serves(build: TorchInstall, device: Device, machine: str) -> bool:
    archs = [
        listed
        for release in releases()
        if release["newest"] == build.version
        for variant, listed in variants(release, machine)
        if variant == build.variant
    ]
    return any(wheel_supports(listed, device.compute_capability, cuda=cuda_of(build.variant)) for listed in archs)


def _memories(devices: Sequence[Device]) -> Finding:
    listed = ", ".join(f"cuda:{device.index} {format_bytes(device.memory_total_bytes)}" for device in devices)
    return Finding(
        id="mixed_devices.memories",
        severity=Severity.OK,
        what=f"cards with different memory: {listed}",
        why="a run across them is cut to the smallest",
        where=("cuda", "nvml"),
    )


def _weaker_first(devices: Sequence[Device]) -> Iterator[Finding]:
    """A first card that another one beats in memory without being older, or the other way round."""
    first = devices[0]
    better = [device for device in devices[1:] if _beats(device, first)]
    if not better:
        return
    best = max(better, key=lambda device: (device.compute_capability, device.memory_total_bytes))
    yield Finding(
        id="mixed_devices.weaker_first",
        severity=Severity.WARNING,
        what=f"cuda:0 is `{first.name}` ({format_bytes(first.memory_total_bytes)}), cuda:{best.index} is `{best.name}` "
        f"({format_bytes(best.memory_total_bytes)})",
        why="a run on one card takes cuda:0",
        where=("cuda", "nvml"),
        affects=("cuda:0", "training"),
        remedies=_choose([best], f"train on {best.name}"),
    )


def _beats(one: Device, other: Device) -> bool:
    """Whether a card is in both memory and capability at least as good and in one plainly better."""
    larger = one.memory_total_bytes * ALIKE_FRACTION > other.memory_total_bytes
    as_large = one.memory_total_bytes >= other.memory_total_bytes * ALIKE_FRACTION
    newer = one.compute_capability > other.compute_capability
    return as_large and one.compute_capability >= other.compute_capability and (larger or newer)


def _choose(devices: Sequence[Device], what: str) -> tuple[Remedy, ...]:
    """Show only those cards; by UUID, which no order changes."""
    uuids = [device.uuid for device in devices]
    if not uuids or None in uuids:
        return ()
    return (shell(what, f"export CUDA_VISIBLE_DEVICES={','.join(map(str, uuids))}"),)


CHECKS: tuple[Check, ...] = (
    Check(id="mixed_devices", question="are the cards of one kind, and what if not?", run=check_mixed_devices),
    *device_order.CHECKS,
    *links.CHECKS,
)
