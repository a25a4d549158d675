"""Remedies that several checks give, with commands for the Python that was looked at."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rl_compat.doctor.findings import Remedy, Step, Sureness
from rl_compat.doctor.tables.cards import all_cards
from rl_compat.doctor.tables.drivers import install_driver, last_branch
from rl_compat.doctor.tables.target import known_driver, newest_cuda, suitable_torch, target_of
from rl_compat.doctor.tables.torch import OLDEST_PYTHON, companions, releases
from rl_compat.doctor.tables.wheels import NoTorchBuildError, TorchInstall, pip_arguments
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Hardware

NEW_ENVIRONMENT = ".venv"
"folder of the virtual environment that is made where the Python that was looked at will not do"
WSL_LIBRARY_PATH = 'export LD_LIBRARY_PATH="/usr/lib/wsl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
"puts the driver of Windows first; an empty entry would mean the current folder"
PROJECT = ("-e", ".")
"what pip installs of this project, in its checkout"
BUILT_FOR_ONE_TORCH = ("vllm", "sglang", "flash-attn", "flash-attn-3", "xformers")
"packages with machine code for one release of torch"


def pip_install(hardware: Hardware, *arguments: str) -> str:
    """`PYTHON -m pip install …` for the Python of the machine; `python` where it is not known."""
    return shlex.join([hardware.software.executable or "python", "-m", "pip", "install", *arguments])


def pip_uninstall(hardware: Hardware, *names: str) -> str:
    return shlex.join([hardware.software.executable or "python", "-m", "pip", "uninstall", "--yes", *names])


def new_environment(hardware: Hardware) -> Remedy:
    """Make a virtual environment with the Python that was looked at, which goes into the same block of commands."""
    return Remedy(
        what=f"make a virtual environment in `{NEW_ENVIRONMENT}` and install into that",
        step=Step.PYTHON,
        commands=(shlex.join([hardware.software.executable or "python3", "-m", "venv", NEW_ENVIRONMENT]),),
    )


def install_torch(hardware: Hardware) -> Remedy:
    """Install the build that suits the machine, or the best way to one where nothing can be installed as things are."""
    return torch_remedies(hardware)[0]


def torch_remedies(hardware: Hardware) -> tuple[Remedy, ...]:
    """Every way to a torch that suits the machine, best first; never empty."""
    software = hardware.software
    if parse_version(software.python) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        with_oldest = replace(hardware, software=replace(software, python=oldest))
        return other_python(hardware) or (new_python(hardware, oldest), *torch_remedies(with_oldest))
    try:
        build = suitable_torch(hardware)
    except NoTorchBuildError as error:
        return _ways_out(hardware, error)
    return (install(hardware, build),)


def install(hardware: Hardware, build: TorchInstall) -> Remedy:
    """Install one build, with the packages beside it that go with one torch only."""
    installed = hardware.software.packages
    together = [requirement for name, requirement in companions(_release(build)).items() if name in installed]
    again = ["--force-reinstall"] if installed.get("torch") == build.requirement.removeprefix("torch==") else []
    other_release = parse_version(installed.get("torch", ""))[:2] != parse_version(build.version)[:2]
    outdated = [name for name in BUILT_FOR_ONE_TORCH if name in installed and other_release]
    return Remedy(
        what=f"install torch {build.version} for {_kind(build)}; {_reason(hardware, build)}"
        + _beside(together, outdated),
        step=Step.TORCH,
        commands=(pip_install(hardware, *again, *_pip_arguments(hardware, build), *together),),
    )


def update_driver(hardware: Hardware, needed: str) -> Remedy:
    """Get a driver of at least that version, wherever the driver of this machine lives."""
    cards = all_cards(hardware)
    lasts = [last for card in cards if card.capability and (last := last_branch(card.capability)) is not None]
    bound = f", up to R{min(lasts)}, the last branch with every card here" if lasts else ""
    driver = f"an NVIDIA driver of {needed} or newer{bound}"
    if hardware.host.wsl:
        return Remedy(
            what=f"on the Windows side install {driver} and run `wsl --shutdown`; inside of WSL no driver is installed",
            step=Step.DRIVER,
        )
    return replace(install_driver(hardware, cards), what=f"get {driver}: {install_driver(hardware, cards).what}")


def on_the_cpu(hardware: Hardware, because: str) -> Remedy:
    """Train without the card: hide it and install the CPU build."""
    try:
        build = replace(target_of(hardware), cards=()).builds()[0]
    except NoTorchBuildError as error:
        return Remedy(what=f"{because}; nor can torch for the CPU be installed: {error}", step=Step.TORCH)
    pip = pip_install(hardware, *_pip_arguments(hardware, build))
    return Remedy(
        what=f"hide the card and train on the CPU with torch {build.version}, or use another card; {because}",
        step=Step.TORCH,
        commands=("export CUDA_VISIBLE_DEVICES=", pip),
    )


def newer_system() -> Remedy:
    """For a C library that torch is not published for."""
    return Remedy(
        what="use a container or a release of the system with a newer glibc (Debian 10, Ubuntu 20.04, RHEL 8 or "
        "later); the driver of the host can stay",
        step=Step.SYSTEM,
    )


def unset(*names: str) -> Remedy:
    return Remedy(
        what=f"take {' and '.join(names)} out of the environment, and out of the shell's start-up file",
        step=Step.SHELL,
        commands=(f"unset {' '.join(names)}",),
    )


def shell(what: str, *commands: str, sure: Sureness = Sureness.PASTE) -> Remedy:
    return Remedy(what=what, step=Step.SHELL, commands=commands, sure=sure)


def _ways_out(hardware: Hardware, error: NoTorchBuildError) -> tuple[Remedy, ...]:
    """What to change first where no build fits: the Python, the driver, or the card."""
    if error.obstacle == "machine":
        return (Remedy(what=f"{error}: use another machine, or a torch that its maker built", step=Step.TORCH),)
    if error.obstacle == "card":
        return (on_the_cpu(hardware, str(error).partition(":")[0]),)
    if error.obstacle == "system":
        return (newer_system(), *other_python(hardware))
    if error.obstacle == "driver" and error.needed_driver is not None:
        return (*other_python(hardware), update_driver(hardware, error.needed_driver))
    return other_python(hardware) or (
        Remedy(what=f"no torch can be installed as things are: {error}", step=Step.TORCH),
    )


def other_python(hardware: Hardware) -> tuple[Remedy, ...]:
    """A new environment with another Python, torch and this project; none when no Python gets a torch for the machine.

    Of the Pythons that get the newest torch it is the nearest to the present one.
    """
    wanted = target_of(hardware)
    pythons = wanted.pythons()
    if not pythons:
        return ()
    python = min(pythons, key=lambda known: abs(_minor(known) - _minor(wanted.python)))
    build = replace(wanted, python=python).builds()[0]
    pip = [f"{NEW_ENVIRONMENT}/bin/python", "-m", "pip", "install"]
    environment = new_python(hardware, python)
    return (
        replace(
            environment,
            what=f"{environment.what}; it gets torch {build.version} for {_kind(build)}, then this project",
            commands=(
                *environment.commands,
                shlex.join([*pip, *_pip_arguments(hardware, build)]),
                shlex.join([*pip, *PROJECT]),
            ),
        ),
    )


def new_python(hardware: Hardware, python: str) -> Remedy:
    """A new environment with that Python: conda brings it along, otherwise it must be there."""
    what = f"make an environment in `{NEW_ENVIRONMENT}` with Python {python}"
    if hardware.software.environment_kind == "conda":
        conda = f"conda create --yes --prefix ./{NEW_ENVIRONMENT} python={python} pip"
        return Remedy(what=what, step=Step.PYTHON, commands=(conda,))
    uv = f"uv venv --seed --python {python} {NEW_ENVIRONMENT}"
    return Remedy(
        what=f"{what} (where that is missing, `{uv}` brings it)",
        step=Step.PYTHON,
        commands=(f"python{python} -m venv {NEW_ENVIRONMENT}",),
        sure=Sureness.UNSURE,
    )


def _pip_arguments(hardware: Hardware, build: TorchInstall) -> list[str]:
    return pip_arguments(build, from_pypi=target_of(hardware).system == "Darwin")


def _minor(python: str) -> int:
    """`3.12` as 12; every Python before 3 as 0."""
    major, minor = (*parse_version(python), 0, 0)[:2]
    return minor if major == 3 else 0


def _reason(hardware: Hardware, build: TorchInstall) -> str:
    """Why that build, in terms of the CUDA that the driver runs where its own version does not count, as under WSL."""
    by_cuda, newest = known_driver(hardware), newest_cuda(hardware)
    if by_cuda is None or newest is None or by_cuda == hardware.driver.version:
        return build.reason
    return build.reason.replace(f"driver {by_cuda}", f"a driver for CUDA {newest}")


def _beside(together: list[str], outdated: list[str]) -> str:
    with_it = f"; {' and '.join(together)} go with it, or can be uninstalled" if together else ""
    old = " and ".join(f"`{name}`" for name in outdated)
    return with_it + (f"; after that reinstall or uninstall {old}, built for another torch" if outdated else "")


def _release(build: TorchInstall) -> dict[str, object]:
    return next(row for row in releases() if row["newest"] == build.version)


def _kind(build: TorchInstall) -> str:
    return "the CPU" if build.variant == "cpu" else f"CUDA {build.variant.removeprefix('cu')[:2]}.{build.variant[-1]}"
