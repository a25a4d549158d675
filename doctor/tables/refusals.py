"""Why no published build of torch fits the cards, the driver and the Python."""

from __future__ import annotations

from collections.abc import Sequence

from rl_compat.capability.binaries import parse_version, wheel_supports
from rl_compat.doctor.tables.rows import Capability, capability_text
from rl_compat.doctor.tables.torch import (
    OLDEST,
    cuda_of,
    needed_driver,
    python_bounds,
    python_fits,
    releases,
    variants,
)


class NoTorchBuildError(LookupError):
    """No published build fits; the message contains the reason and what to change."""

    def __init__(self, message: str, *, obstacle: str, needed_driver: str | None = None) -> None:
        super().__init__(message)
        self.obstacle = obstacle
        "`machine`, `system` (the C library), `python`, `card`, `driver`, or `source` if pip finds none"
        self.needed_driver = needed_driver
        "the oldest that fits, if the driver is the obstacle"


def why_none(cards: Sequence[Capability], driver: str | None, python: str, machine: str) -> NoTorchBuildError:
    """The first of Python, card and driver that no listed build supports."""
    weakest = cards[0]
    if not releases(python):
        return refused_python(python)
    serving = [
        (release, variant)
        for release in releases()
        for variant, archs in variants(release, machine)
        if wheel_supports(archs, weakest, cuda=cuda_of(variant))
    ]
    if not serving:
        return NoTorchBuildError(
            f"no torch from {'.'.join(map(str, OLDEST))} on has code for compute capability {capability_text(weakest)} "
            f"on {machine}: this card is not usable, hide it with CUDA_VISIBLE_DEVICES",
            obstacle="card",
        )
    for_python = [(release, variant) for release, variant in serving if python_fits(python_bounds(release), python)]
    if not for_python:
        bounds = python_bounds(serving[0][0])
        return NoTorchBuildError(
            f"torch with code for compute capability {capability_text(weakest)} needs Python {bounds}, "
            f"this is {python}",
            obstacle="python",
        )
    least = min(filter(None, (needed_driver(cuda_of(variant)) for _, variant in for_python)), key=parse_version)
    return NoTorchBuildError(
        f"driver {driver} is too old: torch with code for compute capability {capability_text(weakest)} "
        f"and Python {python} needs {least} or newer",
        obstacle="driver",
        needed_driver=least,
    )


def refused_libc(libc: str) -> NoTorchBuildError:
    return NoTorchBuildError(f"no torch is published for {libc} with this Python, cards and driver", obstacle="system")


def refused_python(python: str) -> NoTorchBuildError:
    bounds = [python_bounds(row) for row in releases()]
    return NoTorchBuildError(
        f"no torch from {'.'.join(map(str, OLDEST))} on is listed for Python {python}: "
        f"the newest supports {bounds[0]}, the oldest {bounds[-1]}",
        obstacle="python",
    )
