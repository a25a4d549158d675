"""Machines as they would be once their failures are mended: cards that answer, the torch that suits them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from rl_compat.doctor.tables.target import target_of
from rl_compat.doctor.tables.torch import cuda_of, read_knowledge, releases, variants
from rl_compat.doctor.tables.wheels import NoTorchBuildError, TorchInstall
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.types import Device, Hardware, TorchBuild


def supposed(hardware: Hardware, *, new_torch: bool) -> Iterator[tuple[Hardware, TorchInstall | None]]:
    """Mended machines and the build of torch put into each, None for its own; the best first, at last the CPU alone.

    `new_torch` says whether another torch is part of what mends the machine; otherwise the installed one is trusted.
    """
    seen = with_its_cards(hardware)
    for machine in (seen, replace(seen, devices=())) if seen.devices else (seen,):
        yield machine if new_torch else with_working_torch(machine), None
        build = obtainable_torch(machine)
        if build is not None:
            yield with_torch(machine, build), build


def obtainable_torch(hardware: Hardware) -> TorchInstall | None:
    """The build that suits the machine, if need be with another Python or on another system.

    None when none serves its cards and driver.
    """
    wanted = target_of(hardware)
    for python in (wanted.python, *wanted.pythons()[:1]):
        for libc in (wanted.libc, None):
            with suppress(NoTorchBuildError):
                return replace(wanted, python=python, libc=libc).builds()[0]
    return None


def with_its_cards(hardware: Hardware) -> Hardware:
    """The cards that are visible, else those that are hidden, else the first that only the PCI bus knows."""
    if hardware.devices:
        return hardware
    if hardware.hidden_devices:
        shown = tuple(replace(device, index=index) for index, device in enumerate(hardware.hidden_devices))
        return replace(hardware, devices=shown, hidden_devices=())
    return replace(hardware, devices=_on_the_bus(hardware))


def with_working_torch(hardware: Hardware) -> Hardware:
    """The machine with its own torch as it would be if nothing stood in its way."""
    torch = hardware.software.torch
    reaching = None if torch is None else replace(torch, cuda_available=torch.cuda is not None, cuda_error=None)
    return replace(hardware, software=replace(hardware.software, torch=reaching, torch_error=None))


def with_torch(hardware: Hardware, build: TorchInstall) -> Hardware:
    """The machine with that build imported."""
    software = replace(hardware.software, torch=as_torch(build, hardware), torch_error=None)
    return replace(hardware, software=software)


def as_torch(build: TorchInstall, hardware: Hardware) -> TorchBuild:
    """What an import of that build would report on this machine."""
    if build.variant == "cpu":
        return TorchBuild(version=f"{build.version}+cpu")
    release = next(row for row in releases() if row["newest"] == build.version)
    return TorchBuild(
        version=f"{build.version}+{build.variant}",
        cuda=cuda_of(build.variant),
        arch_list=tuple(dict(variants(release, target_of(hardware).machine))[build.variant]),
        cuda_available=True,
    )


def _on_the_bus(hardware: Hardware) -> tuple[Device, ...]:
    """The first card of the bus that the catalogue has, with the memory that it has there; the least of several."""
    for gpu in hardware.pci_gpus or ():
        rows = [row for row in read_knowledge("gpus")["gpus"] if gpu.device_id.lower() in row["pci_device_ids"]]
        if rows and gpu.kernel_driver != "vfio-pci":
            smallest = min(rows, key=lambda row: row["memory_gb"])
            return emulated_hardware(smallest["id"], hardware).devices
    return ()
