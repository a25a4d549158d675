"""Checks of what encloses this process: a container, which forgets what is written in it, and WSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.hardware.types import Hardware, Host

LAYERS = ("overlay", "overlayfs", "fuse.fuse-overlayfs")
"file systems of a container's own writable layer"
KEPT = ("run", "hub_cache", "model_cache")
"roles of folders whose content is wanted later"


def check_container(hardware: Hardware) -> Iterator[Finding]:
    """Whether what a run writes outlives the container around it."""
    host = hardware.host
    if host.container is None:
        return
    lost = [folder for folder in host.folders if folder.role in KEPT and folder.file_system in LAYERS]
    if not lost:
        what = f"runs inside a container ({host.container})"
        yield Finding(id="container.around", severity=Severity.OK, what=what, where=("container",))
        return
    paths = ", ".join(dict.fromkeys(f"`{folder.path}`" for folder in lost))
    yield Finding(
        id="container.ephemeral",
        severity=Severity.NOTE,
        what=f"written into the own layer of the container ({host.container}): {paths}",
        why="checkpoints and downloaded models are deleted together with the container",
        where=("/proc/mounts",),
        affects=tuple(dict.fromkeys(folder.role for folder in lost)),
        remedies=(_keep_outside(host),),
    )


def _keep_outside(host: Host) -> Remedy:
    if host.container == "kubernetes":
        return Remedy(what="mount a persistent volume there", step=Step.CONTAINER)
    return run_container(
        host,
        "mount a folder of the host, and keep runs and caches in it",
        "--volume HOST_FOLDER:/workspace --env HF_HOME=/workspace/huggingface --env RLC_CACHE=/workspace/rl_compat",
    )


def run_container(host: Host, what: str, options: str) -> Remedy:
    """Start the container anew with those options."""
    program = "podman" if host.container == "podman" else "docker"
    gpus = "--device nvidia.com/gpu=all" if program == "podman" else "--gpus all"
    return Remedy(
        what=what,
        step=Step.CONTAINER,
        commands=(f"{program} run {gpus} {options} IMAGE",),
        sure=Sureness.PLACEHOLDER,
    )


def check_wsl(hardware: Hardware) -> Iterator[Finding]:
    """Which WSL this is: only version 2 shows GPUs to Linux."""
    host = hardware.host
    if not host.wsl:
        return
    first = re.match(r"4\.4\.0-\d+-Microsoft", host.kernel) is not None
    if not first:
        what = f"runs under WSL 2 (kernel {host.kernel})"
        yield Finding(id="wsl.version_2", severity=Severity.OK, what=what, where=("kernel",))
        return
    yield Finding(
        id="wsl.version_1",
        severity=Severity.WARNING,
        what=f"runs under WSL 1 (kernel {host.kernel})",
        why="it has no Linux kernel of its own and shows no GPU: only WSL 2 does",
        where=("kernel",),
        affects=("training",),
        remedies=(
            Remedy(
                what="convert the distribution, in PowerShell on the Windows side: `wsl --set-version DISTRIBUTION 2`",
                step=Step.SYSTEM,
            ),
        ),
    )


def wsl_memory() -> Remedy:
    """More of Windows' memory for WSL, which takes half of it unless told otherwise."""
    return Remedy(
        what="WSL takes half of Windows' memory unless told otherwise: write `memory=<SIZE>GB` under `[wsl2]` into "
        "`%UserProfile%\\.wslconfig` and run `wsl --shutdown`, both on the Windows side",
        step=Step.SYSTEM,
    )


CHECKS: tuple[Check, ...] = (
    Check(id="container", question="does what is written outlive the container?", run=check_container),
    Check(id="wsl", question="which WSL is this?", run=check_wsl),
)
