"""Remedies that several checks share, with commands for the Python of the machine."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.findings import Certainty, Remedy, Step
from rl_compat.doctor.tables.drivers import install_driver, last_branch
from rl_compat.doctor.tables.target import (
    NoTorchBuildError,
    TorchInstall,
    known_driver,
    newest_cuda,
    target_of,
    trainable_cards,
)
from rl_compat.doctor.tables.torch import OLDEST_PYTHON, releases
from rl_compat.hardware.types import Hardware

NEW_ENVIRONMENT = ".venv"
"folder of the virtual environment to create when the current Python is not usable"
PROJECT = ("-e", ".")
"what pip installs to get this project, run in its checkout"
BUILT_FOR_ONE_TORCH = ("vllm", "sglang", "flash-attn", "flash-attn-3", "xformers")
"packages with machine code for one release of torch"


def pip(hardware: Hardware, command: str, *arguments: str) -> str:
    """`PYTHON -m pip COMMAND …` for the Python of the machine; `python` if that is unknown."""
    return shlex.join([hardware.software.executable or "python", "-m", "pip", command, *arguments])


def pip_install(hardware: Hardware, what: str, *arguments: str, certainty: Certainty = Certainty.READY) -> Remedy:
    return Remedy(what, Step.PACKAGE, (pip(hardware, "install", *arguments),), certainty)


def pip_uninstall(hardware: Hardware, what: str, *names: str) -> Remedy:
    return Remedy(what, Step.PACKAGE, (pip(hardware, "uninstall", "--yes", *names),))


def unset(*names: str) -> Remedy:
    what = f"remove {' and '.join(names)} from the environment and from the shell's start-up file"
    return shell(what, f"unset {' '.join(names)}")


def shell(what: str, *commands: str, certainty: Certainty = Certainty.READY) -> Remedy:
    return Remedy(what, Step.SHELL, commands, certainty)


def new_environment(hardware: Hardware) -> Remedy:
    """Create a virtual environment with the current Python; later commands of the same block install into it."""
    command = shlex.join([hardware.software.executable or "python3", "-m", "venv", NEW_ENVIRONMENT])
    return Remedy(f"create a virtual environment in `{NEW_ENVIRONMENT}` and install into it", Step.PYTHON, (command,))


def torch_remedies(hardware: Hardware) -> tuple[Remedy, ...]:
    """Every way to a torch that suits the machine, best first; never empty."""
    software = hardware.software
    if parse_version(software.python) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        with_oldest = replace(hardware, software=replace(software, python=oldest))
        return other_python(hardware) or (new_python(hardware, oldest), *torch_remedies(with_oldest))
    try:
        build = target_of(hardware).builds()[0]
    except NoTorchBuildError as error:
        return _ways_out(hardware, error)
    return (install(hardware, build),)


def install(hardware: Hardware, build: TorchInstall) -> Remedy:
    """Install one build, together with the packages that match a single torch only."""
    installed = hardware.software.packages
    release = next(row for row in releases() if row["newest"] == build.version)
    together = [f"{name}{release[name]}" for name in ("torchvision", "torchaudio") if name in installed]
    again = ["--force-reinstall"] if installed.get("torch") == build.requirement.removeprefix("torch==") else []
    other_release = parse_version(installed.get("torch", ""))[:2] != parse_version(build.version)[:2]
    outdated = [f"`{name}`" for name in BUILT_FOR_ONE_TORCH if name in installed and other_release]
    what = f"install torch {build.version} for {_kind(build)}; {_reason(hardware, build)}"
    if together:
        what += f"; {' and '.join(together)} match it; uninstall them instead if you do not need them"
    if outdated:
        what += f"; afterwards reinstall or uninstall {' and '.join(outdated)}, built for another torch"
    arguments = [*again, *_pip_arguments(hardware, build), *together]
    return Remedy(what, Step.TORCH, (pip(hardware, "install", *arguments),))


def update_driver(hardware: Hardware, needed: str) -> Remedy:
    """Get a driver of at least that version, on the host or on Windows if the driver is there."""
    cards = trainable_cards(hardware)
    lasts = [last for card in cards if card.capability and (last := last_branch(card.capability)) is not None]
    bound = f", up to R{min(lasts)}, the last branch that supports every card here" if lasts else ""
    driver = f"an NVIDIA driver of {needed} or newer{bound}"
    if hardware.host.wsl:
        what = f"install {driver} in Windows, then run `wsl --shutdown` there; do not install a driver inside WSL"
        return Remedy(what, Step.DRIVER)
    return replace(install_driver(hardware, cards), what=f"get {driver}: {install_driver(hardware, cards).what}")


def on_the_cpu(hardware: Hardware, because: str) -> Remedy:
    """Train without the card: hide it and install the CPU build."""
    try:
        build = replace(target_of(hardware), cards=()).builds()[0]
    except NoTorchBuildError as error:
        return Remedy(f"{because}; torch for the CPU cannot be installed either: {error}", Step.TORCH)
    what = f"hide the card and train on the CPU with torch {build.version}, or use another card; {because}"
    hide, torch = "export CUDA_VISIBLE_DEVICES=", hardware.software.torch
    if torch is not None and torch.cuda is None and parse_version(torch.version) == parse_version(build.version):
        return shell(what, hide)
    return Remedy(what, Step.TORCH, (hide, pip(hardware, "install", *_pip_arguments(hardware, build))))


def newer_system() -> Remedy:
    """For a C library that torch is not published for."""
    return Remedy(
        "use a container or an operating system with a newer glibc (Debian 10, Ubuntu 20.04, RHEL 8 or later); "
        "the driver of the host can stay",
        Step.SYSTEM,
    )


def _ways_out(hardware: Hardware, error: NoTorchBuildError) -> tuple[Remedy, ...]:
    """What to change first when no build fits: the Python, the driver, or the card."""
    if error.obstacle == "machine":
        return (Remedy(f"{error}: use another machine, or a torch built by its vendor", Step.TORCH),)
    if error.obstacle == "card":
        return (on_the_cpu(hardware, str(error).partition(":")[0]),)
    if error.obstacle == "system":
        return (newer_system(), *other_python(hardware))
    if error.obstacle == "driver" and error.needed_driver is not None:
        return (*other_python(hardware), update_driver(hardware, error.needed_driver))
    return other_python(hardware) or (Remedy(f"no torch can be installed here: {error}", Step.TORCH),)


def other_python(hardware: Hardware) -> tuple[Remedy, ...]:
    """A new environment with another Python, torch and this project; empty if no Python has a torch for the machine.

    Among the Pythons with the newest torch it is the one nearest to the current version.
    """
    wanted = target_of(hardware)
    pythons = wanted.pythons()
    if not pythons:
        return ()
    python = min(pythons, key=lambda known: abs(_minor(known) - _minor(wanted.python)))
    build = replace(wanted, python=python).builds()[0]
    command = [f"{NEW_ENVIRONMENT}/bin/python", "-m", "pip", "install"]
    environment = new_python(hardware, python)
    return (
        replace(
            environment,
            what=f"{environment.what}; install torch {build.version} for {_kind(build)} and this project into it",
            commands=(
                *environment.commands,
                shlex.join([*command, *_pip_arguments(hardware, build)]),
                shlex.join([*command, *PROJECT]),
            ),
        ),
    )


def new_python(hardware: Hardware, python: str) -> Remedy:
    """A new environment with that Python: conda installs it, otherwise it must already be installed."""
    what = f"create an environment in `{NEW_ENVIRONMENT}` with Python {python}"
    if hardware.software.environment_kind == "conda":
        conda = f"conda create --yes --prefix ./{NEW_ENVIRONMENT} python={python} pip"
        return Remedy(what, Step.PYTHON, (conda,))
    uv = f"uv venv --seed --python {python} {NEW_ENVIRONMENT}"
    command = f"python{python} -m venv {NEW_ENVIRONMENT}"
    return Remedy(f"{what} (if it is not installed, `{uv}` downloads it)", Step.PYTHON, (command,), Certainty.UNCERTAIN)


def _pip_arguments(hardware: Hardware, build: TorchInstall) -> list[str]:
    from_pypi = target_of(hardware).system == "Darwin"
    return [f"torch=={build.version}"] if from_pypi else ["--index-url", build.index_url, build.requirement]


def _minor(python: str) -> int:
    """`3.12` as 12; every Python before 3 as 0."""
    major, minor = (*parse_version(python), 0, 0)[:2]
    return minor if major == 3 else 0


def _reason(hardware: Hardware, build: TorchInstall) -> str:
    """Why that build; names the driver's CUDA version if its own version does not count, as under WSL."""
    by_cuda, newest = known_driver(hardware), newest_cuda(hardware)
    if by_cuda is None or newest is None or by_cuda == hardware.driver.version:
        return build.reason
    return build.reason.replace(f"driver {by_cuda}", f"a driver for CUDA {newest}")


def _kind(build: TorchInstall) -> str:
    return "the CPU" if build.variant == "cpu" else f"CUDA {build.variant.removeprefix('cu')[:2]}.{build.variant[-1]}"
