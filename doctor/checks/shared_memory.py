"""The check of shared memory, through which the processes of several GPUs pass data."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.checks.enclosure import run_container
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Hardware, Host
from rl_compat.units import GIB, format_bytes

NCCL_BYTES = GIB
"what NCCL's guide gives a container: `--shm-size=1g`"


def check_shared_memory(hardware: Hardware) -> Iterator[Finding]:
    """Whether processes of several GPUs have room in /dev/shm. One GPU is one process and needs none."""
    host, num_devices = hardware.host, len(hardware.devices)
    total, free = host.shm_total_bytes, host.shm_free_bytes
    if not host.platform.startswith("Linux") or (total is None and num_devices < 2):
        return
    if num_devices < 2:
        yield _finding("fits", Severity.OK, hardware)
    elif total is None:
        look = shell("look whether it is there and how large", "df -h /dev/shm")
        yield _finding("unknown", Severity.NOTE, hardware, "NCCL and Ray need it for several GPUs", (look,))
    elif total < NCCL_BYTES:
        why = (
            "one GPU is not touched. Between the processes of several NCCL puts its buffers there: such a run stops "
            "at the start with `no space left on device`, which is not about the disk"
        )
        yield _finding("small", Severity.WARNING, hardware, why, enlarge(host))
    elif free is not None and free < NCCL_BYTES:
        why = "what runs now or crashed before left its segments there, and NCCL finds no room at the start"
        look = shell("see what fills it; what belongs to no running program may be deleted", "ls -lhS /dev/shm")
        yield _finding("full", Severity.WARNING, hardware, why, (look, *enlarge(host)))
    else:
        yield _finding("fits", Severity.OK, hardware)


def _finding(
    case: str, severity: Severity, hardware: Hardware, why: str = "", remedies: tuple[Remedy, ...] = ()
) -> Finding:
    num_devices, host = len(hardware.devices), hardware.host
    size = "is missing or was not looked at"
    if host.shm_total_bytes is not None:
        size = f"has {format_bytes(host.shm_total_bytes)}"
        partly = host.shm_free_bytes not in (None, host.shm_total_bytes)
        size += f", {format_bytes(host.shm_free_bytes or 0)} free" if partly else ""
    cards = f"{num_devices} GPUs" if num_devices > 1 else "one GPU" if num_devices else "no GPU"
    return Finding(
        id=f"shared_memory.{case}",
        severity=severity,
        what=f"/dev/shm {size}, for {cards}",
        why=why,
        where=("/dev/shm",),
        affects=("several GPUs",) if severity else (),
        remedies=remedies,
    )


def enlarge(host: Host) -> tuple[Remedy, ...]:
    """Ways to a larger /dev/shm; the container's first where there is a container."""
    gib = max(1, min(8, host.ram_limit_bytes // (4 * GIB)))
    run = run_container(
        host,
        f"start the container with {gib} GiB of shared memory of its own, or by `--ipc=host` with the host's",
        f"--shm-size={gib}g",
    )
    pod = Remedy(
        what=f"on Kubernetes mount a volume `emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}` at /dev/shm in the pod",
        step=Step.CONTAINER,
    )
    mount = Remedy(
        what="make it larger until the next start of the machine",
        step=Step.SYSTEM,
        commands=(f"sudo mount -o remount,size={gib}G /dev/shm",),
    )
    if host.container == "kubernetes":
        return (pod, run)
    return (run, pod) if host.container else (mount,)


CHECKS: tuple[Check, ...] = (
    Check(id="shared_memory", question="is /dev/shm large enough for several GPUs?", run=check_shared_memory),
)
