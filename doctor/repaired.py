"""Machines as they will be once their failures are fixed: with working cards and a torch that suits them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from rl_compat.doctor.tables.target import target_of
from rl_compat.doctor.tables.torch import cuda_of, releases, variants
from rl_compat.doctor.tables.wheels import NoTorchBuildError, TorchInstall
from rl_compat.hardware.gpu.catalogue import emulated_hardware, read_table
from rl_compat.hardware.types import Device, Hardware, TorchBuild


def repaired_machines(hardware: Hardware, *, new_torch: bool) -> Iterator[tuple[Hardware, TorchInstall | None]]:
    """Repaired machines and the torch build in each, None for its own; the best first, the CPU alone last.

    `new_torch` says whether another torch is part of the fix; otherwise the installed one is assumed to work.
    """
    seen = with_its_cards(hardware)
    for machine in (seen, replace(seen, devices=())) if seen.devices else (seen,):
        yield machine if new_torch else with_working_torch(machine), None
        build = obtainable_torch(machine)
        if build is not None:
            yield with_torch(machine, build), build


def obtainable_torch(hardware: Hardware) -> TorchInstall | None:
    """The build that suits the machine, if necessary with another Python or on another system.

    None if no build supports its cards and driver.
    """
    wanted = target_of(hardware)
    for python in (wanted.python, *wanted.pythons()[:1]):
        for libc in (wanted.libc, None):
            with suppress(NoTorchBuildError):
                return replace(wanted, python=python, libc=libc).builds()[0]
    return None


def with_its_cards(hardware: Hardware) -> Hardware:
    """With its visible cards, else its hidden ones, else the first that is on the PCI bus only."""
    if hardware.devices:
        return hardware
    if hardware.hidden_devices:
        shown = tuple(replace(device, index=index) for index, device in enumerate(hardware.hidden_devices))
        return replace(hardware, devices=shown, hidden_devices=())
    return replace(hardware, devices=_on_the_bus(hardware))


def with_working_torch(hardware: Hardware) -> Hardware:
    """With its own torch as if nothing prevented it from working."""
    torch = hardware.software.torch
    reaching = None if torch is None else replace(torch, cuda_available=torch.cuda is not None, cuda_error=None)
    return replace(hardware, software=replace(hardware.software, torch=reaching, torch_error=None))


def with_torch(hardware: Hardware, build: TorchInstall) -> Hardware:
    """With that build imported, and what it reports on this machine."""
    torch = TorchBuild(version=f"{build.version}+{build.variant}")
    if build.variant != "cpu":
        release = next(row for row in releases() if row["newest"] == build.version)
        archs = tuple(dict(variants(release, target_of(hardware).machine))[build.variant])
        torch = replace(torch, cuda=cuda_of(build.variant), arch_list=archs, cuda_available=True)
    return replace(hardware, software=replace(hardware.software, torch=torch, torch_error=None))


def _on_the_bus(hardware: Hardware) -> tuple[Device, ...]:
    """The first card on the bus that the catalogue lists; if several share its id, the one with the least memory."""
    for gpu in hardware.pci_gpus or ():
        rows = [row for row in read_table("gpus")["gpus"] if gpu.device_id.lower() in row["pci_device_ids"]]
        if rows and gpu.kernel_driver != "vfio-pci":
            smallest = min(rows, key=lambda row: row["memory_gb"])
            return emulated_hardware(smallest["id"], hardware).devices
    return ()
