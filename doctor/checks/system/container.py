"""The environment around this process: a container, what it keeps, its shared memory, and WSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, finding, ok, remedy
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
    return remedy("mount_volume") if host.container == "kubernetes" else run_container(host, "mount_folder")


def run_container(host: Host, id: str, **values: object) -> Remedy:
    """A remedy that restarts the container with other options."""
    podman = host.container == "podman"
    run = "podman run --device nvidia.com/gpu=all" if podman else "docker run --gpus all"
    return remedy(id, run=run, **values)


def check_wsl(hardware: Hardware) -> Iterator[Finding]:
    """Which version of WSL this is: only version 2 supports GPUs."""
    host = hardware.host
    if not host.wsl:
        return
    if re.match(r"4\.4\.0-\d+-Microsoft", host.kernel) is None:
        yield ok("wsl.version_2", f"runs under WSL 2 (kernel {host.kernel})", "kernel")
        return
    yield finding("wsl.version_1", f"runs under WSL 1 (kernel {host.kernel})", remedy("convert_to_wsl_2"))


def check_shared_memory(hardware: Hardware) -> Iterator[Finding]:
    """Whether /dev/shm is large enough for the processes of several GPUs; one GPU needs a single process and none."""
    host, num_devices = hardware.host, len(hardware.devices)
    total, free = host.shm_total_bytes, host.shm_free_bytes
    if not host.platform.startswith("Linux") or (total is None and num_devices < 2):
        return
    size = "is missing or was not checked" if total is None else f"has {format_bytes(total)}"
    size += f", {format_bytes(free or 0)} free" if total is not None and free not in (None, total) else ""
    cards = f"{num_devices} GPUs" if num_devices > 1 else "one GPU" if num_devices else "no GPU"
    what = f"/dev/shm {size}, for {cards}"
    if total is None:
        yield finding("shared_memory.unknown", what, remedy("look_at_shm"))
    elif num_devices > 1 and total < NCCL_BYTES:
        yield finding("shared_memory.small", what, *enlarge(host))
    elif num_devices > 1 and free is not None and free < NCCL_BYTES:
        yield finding("shared_memory.full", what, remedy("empty_shm"), *enlarge(host))
    else:
        yield ok("shared_memory.fits", what, "/dev/shm")


def enlarge(host: Host) -> tuple[Remedy, ...]:
    """Ways to a larger /dev/shm; in a container, the container's options first."""
    gib = max(1, min(8, host.ram_limit_bytes // (4 * GIB)))
    run, pod = run_container(host, "larger_shm", gib=gib), remedy("larger_shm_of_pod", gib=gib)
    if host.container == "kubernetes":
        return (pod, run)
    return (run, pod) if host.container else (remedy("remount_shm", gib=gib),)
