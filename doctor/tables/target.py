"""What a build of torch has to support: the cards, driver, Python and processor of a machine.

Runs in a bare checkout with only the standard library: `python3 doctor/tables/target.py` prints pip's arguments.
"""

from __future__ import annotations

import sys

if not __package__:
    sys.path[0] = __file__.rpartition("/")[0] + "/../.."

import argparse
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_compat.capability.binaries import parse_version, wheel_supports
from rl_compat.doctor.tables.cards import all_cards
from rl_compat.doctor.tables.drivers import RESERVED_BY
from rl_compat.doctor.tables.rows import Capability
from rl_compat.doctor.tables.torch import OLDEST, cuda_of, driver_of_cuda, releases, variants
from rl_compat.doctor.tables.wheels import (
    MACHINES,
    NoTorchBuildError,
    TorchInstall,
    describe,
    minor_of,
    pip_arguments,
    processor,
    rank_torch,
    serving_pythons,
)
from rl_compat.hardware.gpu.nvml import cuda_version_text
from rl_compat.hardware.types import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Everything that determines the choice of a build."""

    cards: tuple[Capability, ...]
    driver: str | None
    "the oldest possible one if only its CUDA version is known"
    python: str
    "`3.12`"
    system: str
    "`Linux`, `Darwin` …"
    machine: str
    "`x86_64`, `aarch64` …"
    libc: str | None = None
    "`glibc 2.39`, `musl`, or None if unknown"

    def builds(self) -> tuple[TorchInstall, ...]:
        """Every published build that fits, best first. Raises NoTorchBuildError if there is none."""
        return rank_torch(self.cards, self.driver, self.python, machine=self.machine, libc=self.libc)

    def pythons(self) -> tuple[str, ...]:
        """The Pythons for which the newest fitting build exists, oldest first."""
        return serving_pythons(self.cards, self.driver, self.machine, self.libc)


def target_of(hardware: Hardware) -> Target:
    """The target to install for. An emulated card counts only if there is a real GPU."""
    system, _, machine = hardware.host.platform.partition(" ")
    return Target(
        cards=_cards(hardware),
        driver=known_driver(hardware),
        python=minor_of(hardware.software.python),
        system=system,
        machine=processor(machine or "unknown"),
        libc=hardware.host.libc,
    )


def suitable_builds(hardware: Hardware) -> tuple[TorchInstall, ...]:
    """Every published build that fits the machine, best first. Raises NoTorchBuildError if there is none."""
    return target_of(hardware).builds()


def suitable_torch(hardware: Hardware) -> TorchInstall:
    """The best published build for the machine. Raises NoTorchBuildError if there is none."""
    return suitable_builds(hardware)[0]


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the choice for this machine, and its reason on stderr; exit code 1 if no build fits."""
    parser = argparse.ArgumentParser(
        prog="target.py",
        description="Print the pip arguments for the torch build that suits this machine.",
        epilog="example: python3 doctor/tables/target.py --json",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the detected hardware and every build that fits, as JSON"
    )
    parser.add_argument(
        "--python", default=platform.python_version(), help="Python version to install for (default: this one)"
    )
    options = parser.parse_args(arguments)
    from rl_compat.hardware.probe import probe

    hardware = probe(torch_timeout_seconds=None)
    target, python = target_of(hardware), minor_of(options.python)
    try:
        fitting = rank_torch(target.cards, target.driver, python, machine=target.machine, libc=target.libc)
    except NoTorchBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        describe(hardware),
        *hardware.warnings,
        f"{fitting[0].requirement}: {fitting[0].reason}",
        sep="\n",
        file=sys.stderr,
    )
    print(json.dumps(_as_json(hardware, fitting), indent=1) if options.json else " ".join(pip_arguments(fitting[0])))
    return 0


def _as_json(hardware: Hardware, fitting: Sequence[TorchInstall]) -> dict[str, Any]:
    """The cards and the driver under `found`, and the builds, best first."""
    cards = [
        {"name": card.name, "compute_capability": card.compute_capability, "uuid": card.uuid}
        for card in hardware.devices
    ]
    found = {"cards": cards, "driver_version": hardware.driver.version, "notes": hardware.warnings}
    return {"found": found, "builds": [{**asdict(build), "requirement": build.requirement} for build in fitting]}


if __name__ == "__main__":
    sys.exit(main())
