"""The memory of the cards: how much there is, which processes use it, how the host reaches it, and MIG slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import computing
from rl_compat.doctor.tables.rows import Row
from rl_compat.hardware.gpu.catalogue import find_gpu, read_table
from rl_compat.hardware.types import Device, Hardware, Process
from rl_compat.units import GIB, format_bytes

SMALL_BYTES = 4 * GIB
NOTABLE_FRACTION, LARGE_FRACTION = 0.1, 0.25
"fractions of the memory in use from which it is mentioned, and from which it is a warning"
NOTABLE_BYTES = GIB


def check_device_memory(hardware: Hardware) -> Iterator[Finding]:
    """One finding for all cards without a problem, one for each problem; nothing without a card."""
    fine = []
    for device in hardware.devices:
        found = [*_small(hardware, device), *_unknown(device), *_disagreeing(device), *_in_use(hardware, device)]
        yield from found
        if not found:
            fine.append(device)
    if fine:
        free = (f"cuda:{device.index} has {_free(device)}" for device in fine)
        where = sorted({device.sources.get("memory_free_bytes", "nvml") for device in fine})
        yield ok("device_memory.free", ", ".join(free), *where)
    for device in hardware.devices if hardware.emulated is None else ():
        yield from _lanes(hardware, device)
        yield from _window(hardware, device)


def _free(device: Device) -> str:
    return f"{format_bytes(device.memory_free_bytes)} free of {format_bytes(device.memory_total_bytes)}"


def _small(hardware: Hardware, device: Device) -> Iterator[Finding]:
    if device.memory_total_bytes >= SMALL_BYTES:
        return
    larger = max(hardware.devices, key=lambda other: other.memory_total_bytes)
    yield finding(
        "device_memory.small",
        f"cuda:{device.index} `{device.name}` has {format_bytes(device.memory_total_bytes)}",
        severity=Severity.WARNING if larger.memory_total_bytes < SMALL_BYTES else Severity.OK,
        affects=(f"cuda:{device.index}", "training"),
    )


def _unknown(device: Device) -> Iterator[Finding]:
    if device.sources.get("memory_free_bytes") == "rule":
        yield finding(
            "device_memory.free_unknown",
            f"the free memory of cuda:{device.index} is unknown, of {format_bytes(device.memory_total_bytes)} in total",
            remedy("look_yourself"),
            affects=(f"cuda:{device.index}",),
        )


def _disagreeing(device: Device) -> Iterator[Finding]:
    other = device.nvml_memory_total_bytes
    if other is not None:
        yield finding(
            "device_memory.disagreement",
            f"cuda:{device.index} `{device.name}` has {format_bytes(device.memory_total_bytes)} according to CUDA and "
            f"{format_bytes(other)} according to NVML",
            affects=(f"cuda:{device.index}",),
        )


def _in_use(hardware: Hardware, device: Device) -> Iterator[Finding]:
    """Memory that other programs use. They are named and never touched."""
    used = device.memory_total_bytes - device.memory_free_bytes
    if used < max(NOTABLE_BYTES, NOTABLE_FRACTION * device.memory_total_bytes) or device.mig_profile is not None:
        return
    others = computing(device)
    by_display = bool(device.processes) and not others
    large = used >= LARGE_FRACTION * device.memory_total_bytes
    case = "display" if by_display else "held" if others else "in_use"
    quiet = (Severity.NOTE if by_display else Severity.WARNING) if large else Severity.OK
    yield finding(
        f"device_memory.{case}",
        f"cuda:{device.index} `{device.name}` has {_free(device)}: {_holders(hardware, device, used)}",
        *_another_card(hardware, device),
        _free_it(hardware, others, by_display),
        severity=Severity.WARNING if others else quiet,
        where=(device.sources.get("memory_free_bytes", "nvml"),),
        affects=(f"cuda:{device.index}", "training", "rollout"),
    )


def _holders(hardware: Hardware, device: Device, used: int) -> str:
    if device.processes:
        return ", ".join(_holder(process) for process in sorted(device.processes, key=lambda p: -(p.used_bytes or 0)))
    if hardware.host.wsl or hardware.host.container:
        unseen = "Windows and its programs" if hardware.host.wsl else "programs outside this container"
        return f"{format_bytes(used)} in use, possibly by {unseen}"
    return f"{format_bytes(used)} in use by unknown programs"


def _holder(process: Process) -> str:
    amount = format_bytes(process.used_bytes) if process.used_bytes else "an unknown amount"
    return f"process {process.pid}{f' ({process.name})' if process.name else ''} uses {amount}"


def _another_card(hardware: Hardware, device: Device) -> Iterator[Remedy]:
    """The card with the most free memory, if it has clearly more than this one."""
    best = max(hardware.devices, key=lambda other: other.memory_free_bytes)
    if best.memory_free_bytes > device.memory_free_bytes * 3 // 2 and best.uuid:
        free = format_bytes(best.memory_free_bytes)
        yield shell(f"train on `{best.name}`, which has {free} free", f"export CUDA_VISIBLE_DEVICES={best.uuid}")


def _free_it(hardware: Hardware, others: Sequence[Process], by_display: bool) -> Remedy:
    if others and not hardware.host.container and not hardware.host.wsl:
        return remedy("ask_owner", pids=",".join(str(process.pid) for process in others))
    return remedy("move_desktop" if by_display else "ask_users")


def _lanes(hardware: Hardware, device: Device) -> Iterator[Finding]:
    width, full = device.pcie_width, device.pcie_width_max
    if not width or not full or width * 2 >= full:
        return
    several = len(hardware.devices) > 1
    yield finding(
        "device_memory.pcie_lanes",
        f"cuda:{device.index} `{device.name}` uses {width} of {full} PCIe lanes",
        remedy("use_full_slot"),
        severity=Severity.WARNING if several else Severity.NOTE,
        affects=(f"cuda:{device.index}", "offload", *(("several GPUs",) if several else ())),
    )


def _window(hardware: Hardware, device: Device) -> Iterator[Finding]:
    window, gpu = device.bar1_total_bytes, find_gpu(device.name, device.memory_total_bytes)
    if window is None or gpu is None or gpu.form != "datacenter" or device.mig_profile is not None:
        return
    if window >= device.memory_total_bytes or len(hardware.devices) < 2:
        return
    yield finding(
        "device_memory.bar1",
        f"cuda:{device.index} `{device.name}` exposes {format_bytes(window)} of its "
        f"{format_bytes(device.memory_total_bytes)} on the PCIe bus (BAR1)",
        remedy("resizable_bar"),
        affects=(f"cuda:{device.index}", "several GPUs"),
    )


def check_mig(hardware: Hardware) -> Iterator[Finding]:
    """Nothing on a machine without a GPU in MIG mode."""
    if hardware.emulated is not None:
        return
    for device in hardware.devices:
        if device.mig_profile is not None:
            yield from _slice(device)
    for device in hardware.hidden_devices:
        if device.mig_slices == 0:
            yield _without_slices(hardware, device)
        elif device.mig_slices and not any(other.mig_profile for other in hardware.devices):
            what = f"GPU {device.index} `{device.name}` has {device.mig_slices} slices, and CUDA shows none of them"
            yield ok("mig.unused_slices", what, "nvml", why="select one by name: `CUDA_VISIBLE_DEVICES=MIG-…`")


def share_of(name: str, profile: str) -> str | None:
    """`3 of 7`, the compute units of that GPU in a profile; None if the table does not list them."""
    row = _profiles(name)
    number = profile.partition("g.")[0]
    return f"{number} of {row['compute_slices']}" if row and number.isdigit() else None


def _profiles(name: str) -> Row | None:
    gpu = find_gpu(name)
    rows = read_table("mig")["profiles"]
    return next((row for row in rows if gpu is not None and gpu.id in row["gpus"]), None)


def _slice(device: Device) -> Iterator[Finding]:
    share, id = share_of(device.name, device.mig_profile or ""), f"cuda:{device.index}"
    units = f": {share} compute units" if share else ""
    gpu = device.name.partition(" MIG")[0]
    what = f"{id} is a slice `{device.mig_profile}` of `{gpu}`{units}, {format_bytes(device.memory_total_bytes)}"
    why = "kernels and torch builds are those of the whole GPU; memory and speed are those of the slice"
    yield ok("mig.slice", what, "nvml", "cuda", why=why, affects=(id,))
    if device.mig_slices != 1:
        count = f"{device.mig_slices} slices" if device.mig_slices else "slices that the driver does not list here"
        yield finding("mig.one_slice", f"the GPU of {id} has {count}, and a process sees one")


def _without_slices(hardware: Hardware, device: Device) -> Finding:
    row = _profiles(device.name)
    largest = row["profiles"][-1] if row else None
    create = "create_slice" if largest else "create_slices"
    remedies = [remedy(id, gpu=device.index, profile=largest) for id in ("leave_mig", create)]
    if hardware.host.container:
        remedies = [Remedy(f"on the host: {remedy.what}", remedy.step) for remedy in remedies]
    return finding(
        "mig.no_slices",
        f"GPU {device.index} `{device.name}` is in MIG mode and has no slice",
        *remedies,
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
    )
