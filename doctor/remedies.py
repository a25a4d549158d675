"""Remedies that several checks give, with commands for the Python that was looked at."""

from __future__ import annotations

import shlex

from rl_compat.doctor.types import Remedy, Step, Sureness
from rl_compat.doctor.wheels import NoTorchBuildError, TorchInstall, pip_arguments, rank_torch
from rl_compat.hardware.types import Hardware


def pip_install(hardware: Hardware, *arguments: str) -> str:
    """`PYTHON -m pip install …` for the Python of the machine; `python` where it is not known."""
    return shlex.join([hardware.software.executable or "python", "-m", "pip", "install", *arguments])


def pip_uninstall(hardware: Hardware, *names: str) -> str:
    return shlex.join([hardware.software.executable or "python", "-m", "pip", "uninstall", "--yes", *names])


def suitable_torch(hardware: Hardware) -> TorchInstall:
    """The published build for the visible cards, the driver and the Python. NoTorchBuildError when none is listed."""
    host, software = hardware.host, hardware.software
    return rank_torch(
        [device.compute_capability for device in hardware.devices],
        hardware.driver.version,
        ".".join(software.python.split(".")[:2]),
        machine=host.platform.split()[-1].lower(),
    )[0]


def install_torch(hardware: Hardware) -> Remedy:
    """Install the build that suits the machine, or say why there is none."""
    try:
        build = suitable_torch(hardware)
    except NoTorchBuildError as error:
        return Remedy(what=f"no build of torch can be installed as things are: {error}", step=Step.TORCH)
    return Remedy(
        what=f"install torch {build.version} for {_kind(build)}: {build.reason}",
        step=Step.TORCH,
        commands=(pip_install(hardware, *pip_arguments(build)),),
    )


def unset(*names: str) -> Remedy:
    return Remedy(
        what=f"take {' and '.join(names)} out of the environment, and out of the shell's start-up file",
        step=Step.SHELL,
        commands=(f"unset {' '.join(names)}",),
    )


def shell(what: str, *commands: str, sure: Sureness = Sureness.PASTE) -> Remedy:
    return Remedy(what=what, step=Step.SHELL, commands=commands, sure=sure)


def _kind(build: TorchInstall) -> str:
    return "the CPU" if build.variant == "cpu" else f"CUDA {build.variant.removeprefix('cu')[:2]}.{build.variant[-1]}"
