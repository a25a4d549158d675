"""What a build of torch has to support on a machine: its cards, driver, Python and processor."""

from __future__ import annotations

import re

from rl_compat.capability.binaries import parse_version, wheel_supports
from rl_compat.doctor.tables.cards import Card, all_cards
from rl_compat.doctor.tables.drivers import RESERVED_BY
from rl_compat.doctor.tables.rows import Capability
from rl_compat.doctor.tables.torch import OLDEST, cuda_of, driver_of_cuda, releases, variants
from rl_compat.doctor.tables.wheels import MACHINES, Target
from rl_compat.hardware.gpu.nvml import cuda_version_text
from rl_compat.hardware.types import Hardware


def target_of(hardware: Hardware) -> Target:
    """The target to install for. An emulated card counts only if there is a real GPU."""
    system, _, machine = hardware.host.platform.partition(" ")
    processor = (machine or "unknown").lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    return Target(
        cards=_cards(hardware),
        driver=known_driver(hardware),
        python=".".join(hardware.software.python.split(".")[:2]),
        system=system,
        machine=processor,
        libc=hardware.host.libc,
    )


def known_driver(hardware: Hardware) -> str | None:
    """The driver's version; if only its CUDA version is known, the oldest driver that supports it.

    Under WSL the driver belongs to Windows and has other version numbers, so its CUDA version takes precedence.
    """
    newest, version = newest_cuda(hardware), hardware.driver.version
    by_cuda = driver_of_cuda(newest) if newest else None
    return (by_cuda or version) if hardware.host.wsl else (version or by_cuda)


def newest_cuda(hardware: Hardware) -> str | None:
    """The newest CUDA version that the driver supports, from NVML or from torch's error, where 11040 means 11.4."""
    if hardware.driver.cuda_version:
        return hardware.driver.cuda_version
    torch = hardware.software.torch
    match = re.search(r"driver on your system is too old \(found version (\d+)\)", (torch and torch.cuda_error) or "")
    return cuda_version_text(int(match.group(1))) if match else None


def has_a_build(hardware: Hardware, capability: Capability) -> bool:
    """Whether any supported torch has code for a card, whatever the driver and Python.

    The installed one counts too: some processors and integrated cards have builds of their own.
    """
    torch, machine = hardware.software.torch, target_of(hardware).machine
    ours = torch is not None and parse_version(torch.version)[:2] >= OLDEST
    if torch is not None and ours and wheel_supports(torch.arch_list, capability, cuda=torch.cuda):
        return True
    return any(
        wheel_supports(archs, capability, cuda=cuda_of(variant))
        for known in ((machine,) if machine in MACHINES else MACHINES)
        for release in releases()
        for variant, archs in variants(release, known)
    )


def _cards(hardware: Hardware) -> tuple[Capability, ...]:
    """Of the visible GPUs, else of the hidden ones, else of those on the bus that the catalogue lists."""
    torch = hardware.software.torch
    if hardware.emulated is not None and not (torch and torch.cuda_available):
        return ()
    seen = hardware.devices or hardware.hidden_devices
    if seen:
        return tuple(device.compute_capability for device in seen)
    on_bus = [card.capability for card in all_cards(hardware) if card.kernel_driver not in RESERVED_BY]
    return tuple(capability for capability in on_bus if capability is not None)


def trainable_cards(hardware: Hardware) -> tuple[Card, ...]:
    """The cards that any supported torch has code for: only they are worth a driver. All cards if there are none."""
    cards = all_cards(hardware)
    served = tuple(card for card in cards if card.capability and has_a_build(hardware, card.capability))
    return served or cards
