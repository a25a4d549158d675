"""The environment around this process: a container, what it keeps, its shared memory, and WSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding, ok
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Hardware, Host
from rl_compat.units import GIB, format_bytes

LAYERS = ("overlay", "overlayfs", "fuse.fuse-overlayfs")
"file systems of a container's own writable layer"
KEPT = ("run", "hub_cache", "model_cache")
"roles of folders whose content is needed later"
NCCL_BYTES = GIB
"what NCCL's guide recommends for a container: `--shm-size=1g`"


def check_container(hardware: Hardware) -> Iterator[Finding]:
    """Whether the output of a run survives the container."""
    host = hardware.host
    if host.container is None:
        return
    lost = [folder for folder in host.folders if folder.role in KEPT and folder.file_system in LAYERS]
    if not lost:
        yield ok("container.around", f"runs inside a container ({host.container})", "container")
        return
    paths = ", ".join(dict.fromkeys(f"`{folder.path}`" for folder in lost))
    yield finding(
        "container.ephemeral",
        f"in the writable layer of the container ({host.container}): {paths}",
        _keep_outside(host),
        affects=tuple(dict.fromkeys(folder.role for folder in lost)),
    )


def _keep_outside(host: Host) -> Remedy:
    if host.container == "kubernetes":
        return Remedy("mount a persistent volume there", Step.CONTAINER)
    options = (
        "--volume HOST_FOLDER:/workspace --env HF_HOME=/workspace/huggingface --env RLC_CACHE=/workspace/rl_compat"
    )
    return run_container(host, "mount a folder of the host, and keep runs and caches in it", options)


def run_container(host: Host, what: str, options: str) -> Remedy:
    """Restart the container with those options."""
    program = "podman" if host.container == "podman" else "docker"
    gpus = "--device nvidia.com/gpu=all" if program == "podman" else "--gpus all"
    return Remedy(what, Step.CONTAINER, (f"{program} run {gpus} {options} IMAGE",), Certainty.PLACEHOLDER)


def check_wsl(hardware: Hardware) -> Iterator[Finding]:
    """Which version of WSL this is: only version 2 supports GPUs."""
    host = hardware.host
    if not host.wsl:
        return
    if re.match(r"4\.4\.0-\d+-Microsoft", host.kernel) is None:
        yield ok("wsl.version_2", f"runs under WSL 2 (kernel {host.kernel})", "kernel")
        return
    convert = "convert the distribution, in PowerShell on Windows: `wsl --set-version DISTRIBUTION 2`"
    yield finding("wsl.version_1", f"runs under WSL 1 (kernel {host.kernel})", Remedy(convert, Step.SYSTEM))


def wsl_memory() -> Remedy:
    """Give WSL more of Windows' memory; by default it gets half."""
    return Remedy(
        "WSL gets half of Windows' memory by default: write `memory=<SIZE>GB` under `[wsl2]` into "
        "`%UserProfile%\\.wslconfig` and run `wsl --shutdown`, both in Windows",
        Step.SYSTEM,
    )


def check_shared_memory(hardware: Hardware) -> Iterator[Finding]:
    """Whether /dev/shm is large enough for the processes of several GPUs; one GPU needs a single process and none."""
    host, num_devices = hardware.host, len(hardware.devices)
    total, free = host.shm_total_bytes, host.shm_free_bytes
    if not host.platform.startswith("Linux") or (total is None and num_devices < 2):
        return
    case, severity, why = "fits", Severity.OK, ""
    remedies: tuple[Remedy, ...] = ()
    if total is None:
        case, severity, why = "unknown", Severity.NOTE, "NCCL and Ray need it for several GPUs"
        remedies = (shell("check whether it exists and how large it is", "df -h /dev/shm"),)
    elif num_devices > 1 and total < NCCL_BYTES:
        case, severity, remedies = "small", Severity.WARNING, enlarge(host)
        why = (
            "one GPU is not affected. NCCL puts the buffers between several processes there: such a run stops at the "
            "start with `no space left on device`, which does not refer to the disk"
        )
    elif num_devices > 1 and free is not None and free < NCCL_BYTES:
        case, severity = "full", Severity.WARNING
        why = "running or crashed programs left segments there, and NCCL finds no room at the start"
        look = shell("see what fills it; delete what belongs to no running program", "ls -lhS /dev/shm")
        remedies = (look, *enlarge(host))
    size = "is missing or was not checked" if total is None else f"has {format_bytes(total)}"
    size += f", {format_bytes(free or 0)} free" if total is not None and free not in (None, total) else ""
    cards = f"{num_devices} GPUs" if num_devices > 1 else "one GPU" if num_devices else "no GPU"
    affects = ("several GPUs",) if severity else ()
    yield Finding(
        f"shared_memory.{case}", severity, f"/dev/shm {size}, for {cards}", why, ("/dev/shm",), affects, remedies
    )


def enlarge(host: Host) -> tuple[Remedy, ...]:
    """Ways to a larger /dev/shm; in a container, the container's options first."""
    gib = max(1, min(8, host.ram_limit_bytes // (4 * GIB)))
    run = run_container(
        host,
        f"start the container with {gib} GiB of shared memory, or with `--ipc=host` to use the host's",
        f"--shm-size={gib}g",
    )
    pod = Remedy(
        f"on Kubernetes, mount a volume `emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}` at /dev/shm in the pod",
        Step.CONTAINER,
    )
    remount = f"sudo mount -o remount,size={gib}G /dev/shm"
    if host.container == "kubernetes":
        return (pod, run)
    return (run, pod) if host.container else (Remedy("enlarge it until the next restart", Step.SYSTEM, (remount,)),)
