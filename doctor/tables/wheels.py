"""Which torch build suits a card, a driver and a Python, from tables, before torch is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rl_compat.capability.binaries import Version, needs_ptx, parse_version, wheel_supports
from rl_compat.doctor.tables.cards import with_capability
from rl_compat.doctor.tables.refusals import NoTorchBuildError, refused_libc, refused_python, why_none
from rl_compat.doctor.tables.rows import Capability, capability_text
from rl_compat.doctor.tables.torch import (
    OLDEST_PYTHON,
    cuda_of,
    driver_runs,
    index_url,
    libc_runs,
    python_bounds,
    releases,
    variants,
)
from rl_compat.hardware.types import Hardware

MACHINES = ("x86_64", "aarch64")
"processors for which torch is published"


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


def choose_torch(
    capability: Capability | Sequence[Capability] | None,
    driver_version: str | None,
    python: str,
    *,
    machine: str = "x86_64",
    libc: str | None = None,
) -> TorchInstall:
    """The newest build for the cards, the driver and the Python. Raises NoTorchBuildError if the tables list none.

    The compute capability decides first and the driver second. If no build has code for all of several cards, the
    build is for the weakest card that any build supports. None, or no card, means a CPU build.
    `libc` is `glibc 2.39`, `musl`, or None if unknown.
    """
    return rank_torch(capability, driver_version, python, machine=machine, libc=libc)[0]


def rank_torch(
    capability: Capability | Sequence[Capability] | None,
    driver_version: str | None,
    python: str,
    *,
    machine: str = "x86_64",
    libc: str | None = None,
) -> tuple[TorchInstall, ...]:
    """Every listed build that fits, best first; never empty. Raises NoTorchBuildError."""
    cards = tuple(sorted(set(_as_cards(capability))))
    if machine not in MACHINES:
        raise NoTorchBuildError(
            f"torch is published for {' and '.join(MACHINES)}, this processor is {machine}", obstacle="machine"
        )
    if not cards:
        return tuple(_cpu_builds(python, machine, libc))
    together = _cuda_builds(cards, driver_version, python, machine, libc, _weakest_note(cards))
    if together:
        return together
    for weakest in cards:
        others = tuple(card for card in cards if card != weakest)
        listed = ", ".join(map(capability_text, others))
        note = f"; no build supports compute capability {listed} too" if others else ""
        alone = _cuda_builds((weakest,), driver_version, python, machine, libc, note)
        if alone:
            return tuple(replace(build, left_out=others) for build in alone)
    if libc is not None and _fits_elsewhere(cards, driver_version, python, machine):
        raise refused_libc(libc)
    raise why_none(cards, driver_version, python, machine)


def _fits_elsewhere(cards: Sequence[Capability], driver_version: str | None, python: str, machine: str) -> bool:
    """Whether a build exists for another C library."""
    try:
        rank_torch(cards, driver_version, python, machine=machine)
    except NoTorchBuildError:
        return False
    return True


def serving_pythons(
    capability: Sequence[Capability], driver_version: str | None, machine: str, libc: str | None = None
) -> tuple[str, ...]:
    """The Pythons with the newest build that fits the cards and the driver, oldest first; may be empty."""
    found: dict[Version, list[str]] = {}
    for python in listed_pythons():
        try:
            build = rank_torch(capability, driver_version, python, machine=machine, libc=libc)[0]
        except NoTorchBuildError:
            continue
        found.setdefault(parse_version(build.version), []).append(python)
    return tuple(found[max(found)]) if found else ()


def listed_pythons() -> list[str]:
    """Every Python from the oldest that rl_compat supports to the newest that a release supports."""
    newest = max(parse_version(python_bounds(row).rpartition("=")[2]) for row in releases())
    return [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], newest[1] + 1)]


def _as_cards(capability: Capability | Sequence[Capability] | None) -> list[Capability]:
    if capability is None:
        return []
    if len(capability) == 2 and isinstance(capability[0], int) and isinstance(capability[1], int):
        return [(capability[0], capability[1])]
    return [card for card in capability if isinstance(card, tuple)]


@cache
def _cuda_builds(
    cards: tuple[Capability, ...], driver_version: str | None, python: str, machine: str, libc: str | None, note: str
) -> tuple[TorchInstall, ...]:
    return tuple(_serving(cards, driver_version, python, machine, libc, note))


def _serving(
    cards: tuple[Capability, ...], driver_version: str | None, python: str, machine: str, libc: str | None, note: str
) -> Iterator[TorchInstall]:
    for release in releases(python):
        for variant, arch_list in variants(release, machine):
            cuda = cuda_of(variant)
            if not all(wheel_supports(arch_list, card, cuda=cuda) for card in cards):
                continue
            if not libc_runs(libc, release["torch"], variant, machine):
                continue
            full = any(needs_ptx(arch_list, card, cuda=cuda) for card in cards)
            if driver_version is not None and not driver_runs(driver_version, cuda, full=full):
                continue
            driver = f"driver {driver_version}" if driver_version else "a driver of unknown version"
            yield TorchInstall(
                version=release["newest"],
                variant=variant,
                index_url=index_url(variant),
                reason=f"newest build with code for compute capability {', '.join(map(capability_text, cards))} "
                f"for {driver} and Python {python}{note}",
                on_pypi=machine == "x86_64" and variant == release["pypi_default"],
            )


def _cpu_builds(python: str, machine: str, libc: str | None) -> Iterator[TorchInstall]:
    found = False
    for release in releases(python):
        if not libc_runs(libc, release["torch"], "cpu", machine):
            continue
        found = True
        yield TorchInstall(
            version=release["newest"],
            variant="cpu",
            index_url=index_url("cpu"),
            reason=f"no GPU, newest CPU build for Python {python}",
        )
    if not found:
        raise refused_libc(libc) if libc is not None and releases(python) else refused_python(python)


def _weakest_note(cards: Sequence[Capability]) -> str:
    return f"; the weakest card, {capability_text(cards[0])}, decides" if len(cards) > 1 else ""


def pip_arguments(install: TorchInstall, *, from_pypi: bool = False) -> list[str]:
    """The arguments of `pip install`."""
    if from_pypi:
        return [f"torch=={install.version}"]
    return ["--index-url", install.index_url, install.requirement]


def processor(text: str) -> str:
    """`AMD64` as `x86_64`, `arm64` as `aarch64`."""
    return text.lower().replace("amd64", "x86_64").replace("arm64", "aarch64")


def minor_of(python: str) -> str:
    """`3.12.8` as `3.12`."""
    return ".".join(python.split(".")[:2])


def describe(hardware: Hardware) -> str:
    """The cards and the driver."""
    if not hardware.devices:
        return "found no usable NVIDIA GPU"
    return f"found {with_capability(hardware.devices)}, driver {hardware.driver.version or 'of unknown version'}"
