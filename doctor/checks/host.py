"""Checks of the machine around the cards: host memory, processor, open files; shared memory and what encloses it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.checks import enclosure, shared_memory
from rl_compat.doctor.checks.enclosure import run_container, wsl_memory
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Device, Hardware, Host
from rl_compat.planning.memory.activations import FP32_BYTES
from rl_compat.planning.memory.budget import HOST_BYTES_PER_OFFLOADED_PARAMETER
from rl_compat.planning.profile import find_profile
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import format_bytes

FULL_TRAINING_BYTES = FP32_BYTES + HOST_BYTES_PER_OFFLOADED_PARAMETER
"per parameter: the gradient, two moments and the weight in fp32"
SHOWN_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
FEW_FILES, ENOUGH_FILES = 256, 4096
MANY_DEVICES = 8


def check_ram(hardware: Hardware) -> Iterator[Finding]:
    """Whether host memory holds the programs, and the optimizer states that the cards cannot."""
    host = hardware.host
    available = min(host.ram_available_bytes, host.ram_limit_bytes)
    cards = sum(device.memory_total_bytes for device in hardware.devices if not shares_ram(device, host))
    case, severity, why = judge_ram(available, cards, limited=_limited(host))
    yield Finding(
        id=f"ram.{case}",
        severity=severity,
        what=_ram_text(host, available) + (f", the cards have {format_bytes(cards)}" if cards else ""),
        why=why,
        where=("/proc/meminfo", "cgroup") if _limited(host) else ("/proc/meminfo",),
        affects=("offload",) if case == "no_offload" else ("training",) if severity else (),
        remedies=tuple(_more_ram(host, available)) if severity else (),
    )


def judge_ram(available: int, cards: int, *, limited: bool) -> tuple[str, Severity, str]:
    """The case, how bad it is, and why; `cards` is the memory of all cards together."""
    programs = find_profile("cpu").limits.context_bytes
    smallest = programs + SMOLLM2_135M.num_parameters * FULL_TRAINING_BYTES
    if available < programs:
        return "none_left", Severity.FAILURE, f"Python with torch takes {format_bytes(programs)} and is killed for it"
    if available < smallest:
        why = (
            f"Python with torch takes {format_bytes(programs)}, and SmolLM2-135M {format_bytes(smallest)} with it "
            f"where {'its optimizer is offloaded' if cards else 'the processor trains it'}"
        )
        return "little", Severity.WARNING, why
    offloaded, on_cards = available / HOST_BYTES_PER_OFFLOADED_PARAMETER, cards / FULL_TRAINING_BYTES
    if offloaded < on_cards:
        why = (
            f"an offloaded optimizer takes {HOST_BYTES_PER_OFFLOADED_PARAMETER} bytes per trained parameter: there is "
            f"room for {offloaded / 1e9:.1f} billion, the cards alone train {on_cards / 1e9:.1f}"
        )
        return "no_offload", Severity.WARNING if limited else Severity.NOTE, why
    return "enough", Severity.OK, ""


def shares_ram(device: Device, host: Host) -> bool:
    """Whether a card has no memory of its own: Jetson and the like."""
    return host.platform.endswith("aarch64") and 0.9 < device.memory_total_bytes / host.ram_total_bytes <= 1


def _limited(host: Host) -> bool:
    return host.ram_limit_bytes < host.ram_total_bytes


def _ram_text(host: Host, available: int) -> str:
    total = format_bytes(host.ram_total_bytes)
    if _limited(host):
        limit = format_bytes(host.ram_limit_bytes)
        return f"{format_bytes(available)} of host memory available within a limit of {limit} (the host has {total})"
    return f"{format_bytes(available)} of {total} host memory available"


def _more_ram(host: Host, available: int) -> Iterator[Remedy]:
    if available < host.ram_limit_bytes // 2:
        command = "ps -eo pid,user,rss,comm --sort=-rss | head"
        yield shell("see which programs hold it, and end those that are not needed", command)
    if _limited(host):
        yield _raise_limit(host)
    if host.wsl:
        yield wsl_memory()
    yield Remedy(what="train adapters, whose optimizer states are small: `model.lora_rank=16`", step=Step.SETTING)


def _raise_limit(host: Host) -> Remedy:
    if host.container == "kubernetes":
        return Remedy(what="raise `resources.limits.memory` of the pod's container", step=Step.CONTAINER)
    if host.container:
        return run_container(host, "start the container with a higher limit, or without one", "--memory=SIZE")
    what = "ask for more memory where the limit is set: in the batch system's job or the systemd slice"
    return Remedy(what=what, step=Step.SYSTEM)


def check_cpu(hardware: Hardware) -> Iterator[Finding]:
    """Cores, threads and vector instructions; they matter most where the processor is the device."""
    host = hardware.host
    if host.platform.endswith("x86_64") and host.cpu_features and "avx2" not in host.cpu_features:
        yield _no_avx2(hardware)
    else:
        shown = [name for name in SHOWN_FEATURES if name in host.cpu_features]
        known = f" with {', '.join(shown)}" if shown else ""
        yield Finding(
            id="cpu.usable",
            severity=Severity.OK,
            what=f"{host.cpu_name}, {_cores(host)} usable{known}",
            where=("/proc/cpuinfo", "affinity", "cgroup"),
        )
    if not hardware.devices:
        yield from _threads(hardware)


def _no_avx2(hardware: Hardware) -> Finding:
    on_cpu = not hardware.devices
    slow = "training on it is slow" if on_cpu else "an offloaded optimizer is slow"
    return Finding(
        id="cpu.no_avx2",
        severity=Severity.WARNING if on_cpu else Severity.NOTE,
        what=f"{hardware.host.cpu_name} has no `avx2`",
        why=f"CPU libraries of bitsandbytes and vLLM stop with `illegal instruction`, and {slow}",
        where=("/proc/cpuinfo",),
        affects=("training",) if on_cpu else ("offload",),
        remedies=(
            Remedy(
                what="keep weights unquantized and the plain optimizer on the processor: "
                "`model.quantization=none optimizer.name=adamw`",
                step=Step.SETTING,
            ),
        ),
    )


def _threads(hardware: Hardware) -> Iterator[Finding]:
    """What OMP_NUM_THREADS does to a processor that does the training."""
    cores = hardware.host.num_cores
    asked = re.match(r"\s*(\d+)", hardware.environment.get("OMP_NUM_THREADS", ""))
    threads = int(asked.group(1)) if asked else 0
    if threads == 0 or cores // 2 < threads <= cores:
        return
    few = threads < cores
    yield Finding(
        id="cpu.few_threads" if few else "cpu.many_threads",
        severity=Severity.NOTE,
        what=f"`OMP_NUM_THREADS={threads}`, and {_cores(hardware.host)} usable",
        why="torch leaves cores idle" if few else "threads wait for one another on too few cores",
        where=("OMP_NUM_THREADS", "affinity", "cgroup"),
        affects=("training",),
        remedies=(shell("let torch use the cores there are", f"export OMP_NUM_THREADS={cores}"),),
    )


def _cores(host: Host) -> str:
    return f"{host.num_cores} core" + ("s" if host.num_cores != 1 else "")


def check_file_descriptors(hardware: Hardware) -> Iterator[Finding]:
    """Whether enough files and sockets may be open: a run needs few, workers of many GPUs more."""
    limit, num_devices = hardware.host.file_descriptor_limit, len(hardware.devices)
    if limit is None:
        return
    case, severity, why = "enough", Severity.OK, ""
    if 0 <= limit < FEW_FILES:
        case, severity = "few", Severity.WARNING
        why = "libraries, data and trackers together come near it: `too many open files` in the middle of a run"
    elif 0 <= limit < ENOUGH_FILES and num_devices >= MANY_DEVICES:
        case, severity = "few_for_workers", Severity.NOTE
        why = f"Ray opens sockets between the workers of all {num_devices} GPUs"
    raise_it = shell(
        "raise the limit of this shell; where the hard limit (`ulimit -Hn`) is lower, only the administrator can",
        f"ulimit -n {ENOUGH_FILES}",
        sure=Sureness.UNSURE,
    )
    yield Finding(
        id=f"file_descriptors.{case}",
        severity=severity,
        what=f"a process may open {'any number of' if limit < 0 else limit} files",
        why=why,
        where=("RLIMIT_NOFILE",),
        affects=("training",) if severity else (),
        remedies=(raise_it,) if severity else (),
    )


CHECKS: tuple[Check, ...] = (
    *shared_memory.CHECKS,
    Check(id="ram", question="is there enough host memory?", run=check_ram),
    Check(id="cpu", question="what can the processor do?", run=check_cpu),
    Check(id="file_descriptors", question="may enough files be open?", run=check_file_descriptors),
    *enclosure.CHECKS,
)
