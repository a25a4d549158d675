"""Install the torch build that suits this machine into the Python that runs this file.

Needs only the standard library and a checkout: `.venv/bin/python doctor/install_torch.py`. `RLC_TORCH` overrides the
choice with a pip requirement or a wheel file.
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

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.checks.system.storage import TORCH_BYTES
from rl_compat.doctor.checks.torch.build import check_architectures, check_torch
from rl_compat.doctor.checks.torch.cuda import check_torch_driver
from rl_compat.doctor.findings import Finding, Severity, Step
from rl_compat.doctor.remedies import torch_remedies
from rl_compat.doctor.tables.cards import with_capability
from rl_compat.doctor.tables.target import NoTorchBuildError, TorchInstall, target_of
from rl_compat.doctor.tables.torch import BEYOND
from rl_compat.hardware.probe import probe
from rl_compat.hardware.types import Hardware
from rl_compat.units import format_bytes

IMPORT_SECONDS = 300.0
"time limit for an import from a cold disk"

Lister = Callable[[str | None], list[str]]
"the torch versions that pip finds at an index; for None, in its configured sources"


def main() -> int:
    """Install, or print why nothing was installed; exit code 1 if no build is available."""
    requested = os.environ.get("RLC_TORCH")
    if requested:
        say(f"RLC_TORCH requests `{requested}`")
        return install(shlex.split(requested))
    hardware = probe(torch_timeout_seconds=IMPORT_SECONDS, packages=False)
    cards = with_capability(hardware.devices) or "no usable NVIDIA GPU"
    say(f"found {cards}, driver {hardware.driver.version or 'of unknown version'}")
    reasons = why_unusable(hardware)
    if hardware.software.torch is not None and not reasons:
        for finding in not_fixed_by_torch(hardware):
            say(f"another torch would not fix this: {finding.what}")
        say(f"torch {hardware.software.torch.version} is installed and suits this machine, nothing to do")
        return 0
    for reason in reasons:
        say(f"the installed torch has to be replaced: {reason}")
    try:
        arguments, wanted = find_source(target_of(hardware).builds(), list_versions)
    except NoTorchBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        for remedy in torch_remedies(hardware):
            print(f"hint: {remedy.what}", *remedy.commands, sep="\n  ", file=sys.stderr)
        return 1
    say(f"installing torch {wanted.version} ({wanted.variant}): {wanted.reason}")
    needed, free = TORCH_BYTES["cpu" if wanted.variant == "cpu" else "cuda"], shutil.disk_usage(sys.prefix).free
    if free < needed:
        fact = f"`{sys.prefix}` has {format_bytes(free)} free, this torch needs {format_bytes(needed)}"
        print(f"error: {fact}", file=sys.stderr)
        return 1
    broken = hardware.software.torch_error is not None
    return install(["--force-reinstall", *arguments] if broken else arguments)


def why_unusable(hardware: Hardware) -> list[str]:
    """Reasons to replace the installed torch: failures of the checks that another build fixes."""
    torch, error = hardware.software.torch, hardware.software.torch_error
    if torch is None:
        return [error] if error else []
    if parse_version(torch.version)[:2] >= BEYOND:
        return [f"torch {torch.version} is not supported, only releases before {'.'.join(map(str, BEYOND))} are"]
    return [finding.what for finding in _failures(hardware, fixed_by_torch=True)]


def not_fixed_by_torch(hardware: Hardware) -> list[Finding]:
    """Failures that need something else than another torch."""
    return _failures(hardware, fixed_by_torch=False)


def _failures(hardware: Hardware, *, fixed_by_torch: bool) -> list[Finding]:
    checks = (check_torch, check_architectures, check_torch_driver)
    failed = [found for check in checks for found in check(hardware) if found.severity is Severity.FAILURE]
    return [it for it in failed if fixed_by_torch is any(fix.step is Step.TORCH for fix in it.remedies[:1])]


def find_source(builds: Sequence[TorchInstall], lister: Lister) -> tuple[list[str], TorchInstall]:
    """pip's arguments for the best available build, and that build.

    For each build it searches pip's configured sources by local version (`+cpu`, `+cu126`), then PyTorch's index while
    that answers; last it uses the build on PyPI if that is the wanted variant. Raises NoTorchBuildError if no source
    has one.
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
        f"torch {best.version}+{best.variant} is neither at {best.index_url} nor in pip's configured sources: check "
        "the network, put a wheel into the folder PIP_FIND_LINKS, or set RLC_TORCH to a requirement or a wheel file",
        obstacle="source",
    )


def _newest(versions: Iterable[str], build: TorchInstall, *, local: str | None) -> str | None:
    """The newest patch of the build's minor release with that local part."""
    minor = parse_version(build.version)[:2]
    fitting = [
        version
        for version in versions
        if parse_version(version)[:2] == minor and (version.partition("+")[2] or None) == local
    ]
    return max(fitting, key=parse_version, default=None)


def list_versions(index_url: str | None) -> list[str]:
    """Versions of torch for this Python; empty if the index does not answer within a few seconds."""
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
        print(f"error: `pip install {shlex.join(arguments)}` failed, see its output above", file=sys.stderr)
        return 1
    return 0


def _pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def say(text: str) -> None:
    print(f"install_torch: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
