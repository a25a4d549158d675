"""Install the torch build that suits this machine into the Python that runs this file.

Standard library alone, from a bare checkout: `.venv/bin/python doctor/install_torch.py`. `RLC_TORCH` overrides the
choice with any pip requirement or wheel path.
"""

from __future__ import annotations

import sys

if not __package__:
    sys.path[0] = __file__.rpartition("/")[0] + "/.."

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from rl_compat.capability.devices import capability_text
from rl_compat.doctor.checks import torch_build
from rl_compat.doctor.findings import Finding, Severity, Step
from rl_compat.doctor.remedies import torch_remedies
from rl_compat.doctor.tables.target import suitable_builds
from rl_compat.doctor.tables.torch import BEYOND
from rl_compat.doctor.tables.wheels import NoTorchBuildError, TorchInstall
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.probe import probe
from rl_compat.hardware.types import Hardware

GIB = 1024**3
IMPORT_SECONDS = 300.0
"for an import from a cold disk"
DISK_BYTES = {"cpu": 2 * GIB, "cuda": 10 * GIB}
"room for the download, its copy and the unpacked wheels"

Lister = Callable[[str | None], list[str]]
"the torch versions that pip finds at an index, or where it is configured to look for None"


def main() -> int:
    """Install, or say why nothing was installed; exit code 1 when no build can be had."""
    asked = os.environ.get("RLC_TORCH")
    if asked:
        say(f"RLC_TORCH asks for `{asked}`")
        return install(shlex.split(asked))
    hardware = probe(torch_timeout_seconds=IMPORT_SECONDS, packages=False)
    say(describe(hardware))
    faults = why_unusable(hardware)
    if hardware.software.torch is not None and not faults:
        for finding in beside(hardware):
            say(f"another torch would not mend this: {finding.what}")
        say(f"torch {hardware.software.torch.version} is installed and suits this machine: left alone")
        return 0
    for fault in faults:
        say(f"the torch that is installed cannot stay: {fault}")
    try:
        arguments, wanted = find_source(suitable_builds(hardware), list_versions)
    except NoTorchBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        for remedy in torch_remedies(hardware):
            print(f"hint: {remedy.what}", *remedy.commands, sep="\n  ", file=sys.stderr)
        return 1
    say(f"installing torch {wanted.version} ({wanted.variant}): {wanted.reason}")
    needed, free = DISK_BYTES["cpu" if wanted.variant == "cpu" else "cuda"], shutil.disk_usage(sys.prefix).free
    if free < needed:
        print(
            f"error: {free / GIB:.1f} GiB free in `{sys.prefix}`, this torch needs {needed / GIB:.0f} GiB",
            file=sys.stderr,
        )
        return 1
    broken = hardware.software.torch_error is not None
    return install(["--force-reinstall", *arguments] if broken else arguments)


def describe(hardware: Hardware) -> str:
    """The cards and the driver."""
    if not hardware.devices:
        return "found no usable NVIDIA GPU"
    cards = ", ".join(f"{device.name} (compute capability {capability_text(device)})" for device in hardware.devices)
    return f"found {cards}, driver {hardware.driver.version or 'of unknown version'}"


def why_unusable(hardware: Hardware) -> list[str]:
    """What speaks against keeping an installed torch: what the checks find that another build mends."""
    torch, error = hardware.software.torch, hardware.software.torch_error
    if torch is None:
        return [error] if error else []
    if parse_version(torch.version)[:2] >= BEYOND:
        return [f"torch {torch.version} is not older than {'.'.join(map(str, BEYOND))}"]
    return [finding.what for finding in _failures(hardware) if _another_torch_mends(finding)]


def beside(hardware: Hardware) -> list[Finding]:
    """What fails and needs something else than another torch."""
    return [finding for finding in _failures(hardware) if not _another_torch_mends(finding)]


def _failures(hardware: Hardware) -> list[Finding]:
    found = [finding for check in torch_build.CHECKS for finding in check.run(hardware)]
    return [finding for finding in found if finding.severity is Severity.FAILURE]


def _another_torch_mends(finding: Finding) -> bool:
    return any(remedy.step is Step.TORCH for remedy in finding.remedies[:1])


def find_source(builds: Sequence[TorchInstall], lister: Lister) -> tuple[list[str], TorchInstall]:
    """pip's arguments for the best build that can be had, and that build.

    Each build is looked for where pip is configured to look, by its local version (`+cpu`, `+cu126`), and at PyTorch's
    index while that answers; at last the package index's own build is taken where that is the wanted variant. Raises
    NoTorchBuildError when none has it.
    """
    configured = lister(None)
    indexes: dict[str, list[str]] = {}
    for build in builds:
        version = _newest(configured, build, local=build.variant)
        if version is not None:
            return [f"torch=={version}"], build
        answered = all(set(versions) - set(configured) for versions in indexes.values())
        if answered and build.index_url not in indexes:
            indexes[build.index_url] = lister(build.index_url)
        version = _newest(indexes.get(build.index_url, ()), build, local=build.variant)
        if version is not None:
            return ["--index-url", build.index_url, f"torch=={version}"], build
    for build in builds:
        plain = build.on_pypi or (build.variant == "cpu" and platform.system() == "Darwin")
        version = _newest(configured, build, local=None) if plain else None
        if version is not None:
            return [f"torch=={version}"], build
    best = builds[0]
    raise NoTorchBuildError(
        f"torch {best.version}+{best.variant} was found neither at {best.index_url} nor where pip is configured to "
        f"look: check the network, put a wheel into a folder named by PIP_FIND_LINKS, or set RLC_TORCH to a "
        f"requirement or a wheel file",
        obstacle="source",
    )


def _newest(versions: Iterable[str], build: TorchInstall, *, local: str | None) -> str | None:
    """The newest patch release of the build's minor release with that local part."""
    minor = parse_version(build.version)[:2]
    fitting = [
        version
        for version in versions
        if parse_version(version)[:2] == minor and (version.partition("+")[2] or None) == local
    ]
    return max(fitting, key=parse_version, default=None)


def list_versions(index_url: str | None) -> list[str]:
    """Versions of torch for this Python; none when the index does not answer within a few seconds."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--timeout", "10", "--retries", "1"]
    if index_url is not None:
        command += ["--index-url", index_url]
    listed = subprocess.run(command, capture_output=True, text=True, env=_pip_environment(os.environ))
    return parse_versions(listed.stdout)


def parse_versions(text: str) -> list[str]:
    """The versions in the output of `pip index versions`."""
    match = re.search(r"^Available versions:(.*)$", text, re.MULTILINE)
    return [version.strip() for version in match.group(1).split(",") if version.strip()] if match else []


def install(arguments: Sequence[str]) -> int:
    """Run `pip install` with its output shown."""
    command = [sys.executable, "-m", "pip", "install", *arguments]
    code = subprocess.run(command, env=_pip_environment(os.environ)).returncode
    if code != 0:
        print(f"error: `pip install {shlex.join(arguments)}` failed, its message is above", file=sys.stderr)
        return 1
    return 0


def _pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def say(text: str) -> None:
    print(f"install_torch: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
