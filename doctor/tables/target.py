"""What a build of torch has to support, on a machine or in general, and which published build does, from tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rl_compat.capability.binaries import Version, needs_ptx, parse_version, wheel_supports
from rl_compat.doctor.tables.cards import Card, all_cards
from rl_compat.doctor.tables.drivers import RESERVED_BY
from rl_compat.doctor.tables.rows import Capability, capability_text, satisfies
from rl_compat.doctor.tables.torch import (
    OLDEST,
    OLDEST_PYTHON,
    cuda_of,
    driver_of_cuda,
    driver_runs,
    index_url,
    libc_runs,
    needed_driver,
    releases,
    variants,
)
from rl_compat.hardware.gpu.nvml import cuda_version_text
from rl_compat.hardware.types import Hardware

MACHINES = ("x86_64", "aarch64")
"processors for which torch is published"


class NoTorchBuildError(LookupError):
    """No published build fits; the message contains the reason and what to change."""

    def __init__(self, message: str, *, obstacle: str, needed_driver: str | None = None) -> None:
        super().__init__(message)
        self.obstacle = obstacle
        "`machine`, `system` (the C library), `python`, `card`, `driver`, or `source` if pip finds none"
        self.needed_driver = needed_driver
        "the oldest that fits, if the driver is the obstacle"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """One published build and the reason for its choice."""

    version: str
    "`2.14.1`"
    variant: str
    "`cu126` or `cpu`"
    index_url: str
    reason: str
    on_pypi: bool = False
    "PyPI has the same build, without the local version"
    left_out: tuple[Capability, ...] = ()
    "compute capabilities of cards that no build supports together with the others"

    @property
    def requirement(self) -> str:
        """As in the index of its variant, where every Linux build has a local version."""
        return f"torch=={self.version}+{self.variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Everything that determines the choice of a build."""

    cards: tuple[Capability, ...]
    driver: str | None
    "the oldest possible one if only its CUDA version is known"
    python: str
    "`3.12`"
    system: str = "Linux"
    "`Linux`, `Darwin` …"
    machine: str = "x86_64"
    "`x86_64`, `aarch64` …"
    libc: str | None = None
    "`glibc 2.39`, `musl`, or None if unknown"

    def builds(self) -> tuple[TorchInstall, ...]:
        """Every published build that fits, best first; never empty. Raises NoTorchBuildError if there is none.

        The compute capability decides first and the driver second. If no build has code for all of several cards, the
        build is for the weakest card that any build supports. No card means a CPU build.
        """
        if self.machine not in MACHINES:
            published = f"torch is published for {' and '.join(MACHINES)}, this processor is {self.machine}"
            raise NoTorchBuildError(published, obstacle="machine")
        if not self.cards:
            return _cpu_builds(self)
        cards = tuple(sorted(set(self.cards)))
        decides = f"; the weakest card, {capability_text(cards[0])}, decides" if len(cards) > 1 else ""
        together = _cuda_builds(replace(self, cards=cards), decides)
        if together:
            return together
        for weakest in cards:
            others = tuple(card for card in cards if card != weakest)
            note = f"; no build supports compute capability {_listed(others)} too" if others else ""
            alone = _cuda_builds(replace(self, cards=(weakest,)), note)
            if alone:
                return tuple(replace(build, left_out=others) for build in alone)
        raise _refusal(replace(self, cards=cards))

    def best(self) -> TorchInstall | None:
        """The best published build that fits; None if there is none."""
        try:
            return self.builds()[0]
        except NoTorchBuildError:
            return None

    def pythons(self) -> tuple[str, ...]:
        """The Pythons with the newest build that fits the cards and the driver, oldest first; may be empty."""
        found: dict[Version, list[str]] = {}
        for python in listed_pythons():
            build = replace(self, python=python).best()
            if build is not None:
                found.setdefault(parse_version(build.version), []).append(python)
        return tuple(found[max(found)]) if found else ()


def listed_pythons() -> list[str]:
    """Every Python from the oldest that rl_compat supports to the newest that a release supports."""
    newest = max(parse_version(row["python"].rpartition("=")[2]) for row in releases())
    return [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], newest[1] + 1)]


@cache
def _cuda_builds(target: Target, note: str) -> tuple[TorchInstall, ...]:
    """The builds with code for all the cards of the target, best first."""
    driver = f"driver {target.driver}" if target.driver else "a driver of unknown version"
    return tuple(
        TorchInstall(
            version=release["newest"],
            variant=variant,
            index_url=index_url(variant),
            reason=f"newest build with {_code(target, arch_list, variant)} "
            f"for compute capability {_listed(target.cards)} for {driver} and Python {target.python}{note}",
            on_pypi=target.machine == "x86_64" and variant == release["pypi_default"],
        )
        for release in releases(target.python)
        for variant, arch_list in variants(release, target.machine)
        if _runs(target, release, variant, arch_list)
    )


def _code(target: Target, arch_list: list[str], variant: str) -> str:
    compiled = any(needs_ptx(arch_list, card, cuda=cuda_of(variant)) for card in target.cards)
    return "PTX, which the driver compiles," if compiled else "code"


def _runs(target: Target, release: dict[str, Any], variant: str, arch_list: list[str]) -> bool:
    cuda = cuda_of(variant)
    if not all(wheel_supports(arch_list, card, cuda=cuda) for card in target.cards):
        return False
    if not libc_runs(target.libc, release["torch"], variant, target.machine):
        return False
    full = any(needs_ptx(arch_list, card, cuda=cuda) for card in target.cards)
    return target.driver is None or driver_runs(target.driver, cuda, full=full)


def _cpu_builds(target: Target) -> tuple[TorchInstall, ...]:
    url, reason = index_url("cpu"), f"no GPU, newest CPU build for Python {target.python}"
    listed = releases(target.python)
    fitting = [row for row in listed if libc_runs(target.libc, row["torch"], "cpu", target.machine)]
    if not fitting:
        raise _refused_libc(target) if target.libc is not None and listed else _refused_python(target)
    return tuple(TorchInstall(version=row["newest"], variant="cpu", index_url=url, reason=reason) for row in fitting)


def _refusal(target: Target) -> NoTorchBuildError:
    """The first of C library, Python, card and driver that no listed build supports; the cards are in order."""
    if target.libc is not None and replace(target, libc=None).best() is not None:
        return _refused_libc(target)
    if not releases(target.python):
        return _refused_python(target)
    serving = {card: _builds_with_code(target.machine, card) for card in target.cards}
    weakest = next((card for card in target.cards if serving[card]), target.cards[0])
    code = f"code for compute capability {capability_text(weakest)}"
    if not serving[weakest]:
        return NoTorchBuildError(
            f"no torch from {'.'.join(map(str, OLDEST))} on has {code} on {target.machine}: this card is not usable, "
            "hide it with CUDA_VISIBLE_DEVICES",
            obstacle="card",
        )
    for_python = [cuda for release, cuda in serving[weakest] if satisfies(target.python, release["python"])]
    if not for_python:
        needs = f"torch with {code} needs Python {serving[weakest][0][0]['python']}, this is {target.python}"
        return NoTorchBuildError(needs, obstacle="python")
    least = min(filter(None, map(needed_driver, for_python)), key=parse_version)
    return NoTorchBuildError(
        f"driver {target.driver} is too old: torch with {code} and Python {target.python} needs {least} or newer",
        obstacle="driver",
        needed_driver=least,
    )


def _builds_with_code(machine: str, card: Capability) -> list[tuple[dict[str, Any], str]]:
    """The release and the CUDA version of every build with code for a card, newest first."""
    return [
        (release, cuda_of(variant))
        for release in releases()
        for variant, archs in variants(release, machine)
        if wheel_supports(archs, card, cuda=cuda_of(variant))
    ]


def _refused_libc(target: Target) -> NoTorchBuildError:
    fact = f"no torch is published for {target.libc} with this Python, cards and driver"
    return NoTorchBuildError(fact, obstacle="system")


def _refused_python(target: Target) -> NoTorchBuildError:
    bounds = [row["python"] for row in releases()]
    return NoTorchBuildError(
        f"no torch from {'.'.join(map(str, OLDEST))} on is listed for Python {target.python}: "
        f"the newest supports {bounds[0]}, the oldest {bounds[-1]}",
        obstacle="python",
    )


def _listed(cards: Sequence[Capability]) -> str:
    return ", ".join(map(capability_text, cards))


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
