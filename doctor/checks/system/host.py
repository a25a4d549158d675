"""The host: memory, processor, open files, text encoding; and the container or WSL around this process."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Device, Hardware, Host
from rl_compat.planning.memory.activations import FP32_BYTES
from rl_compat.planning.memory.budget import HOST_BYTES_PER_OFFLOADED_PARAMETER
from rl_compat.planning.profile import find_profile
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import GIB, format_bytes

LAYERS = ("overlay", "overlayfs", "fuse.fuse-overlayfs")
"file systems of a container's own writable layer"
KEPT = ("run", "hub_cache", "model_cache")
"roles of folders whose content is needed later"
NCCL_BYTES = GIB
"what NCCL's guide recommends for a container: `--shm-size=1g`"

FULL_TRAINING_BYTES = FP32_BYTES + HOST_BYTES_PER_OFFLOADED_PARAMETER
"per parameter: the gradient, two moments and the weight in fp32"
SHOWN_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
FEW_FILES, ENOUGH_FILES = 256, 4096
MANY_DEVICES = 8


def check_ram(hardware: Hardware) -> Iterator[Finding]:
    """Whether host memory can hold the programs, and the optimizer states that the cards cannot hold."""
    host = hardware.host
    available = min(host.ram_available_bytes, host.ram_limit_bytes)
    cards = sum(device.memory_total_bytes for device in hardware.devices if not shares_ram(device, host))
    case, severity, why = judge_ram(available, cards, limited=_limited(host))
    yield finding(
        f"ram.{case}",
        _ram_text(host, available) + (f", the cards have {format_bytes(cards)}" if cards else ""),
        *(_more_ram(host, available) if severity else ()),
        severity=severity,
        why=why,
        where=("/proc/meminfo", "cgroup") if _limited(host) else ("/proc/meminfo",),
    )


def judge_ram(available: int, cards: int, *, limited: bool) -> tuple[str, Severity, str]:
    """The case, its severity and its reason; `cards` is the memory of all cards together, in bytes."""
    programs = find_profile("cpu").limits.context_bytes
    smallest = programs + SMOLLM2_135M.num_parameters * FULL_TRAINING_BYTES
    needs = f"Python with torch needs {format_bytes(programs)}"
    if available < programs:
        return "none_left", Severity.FAILURE, f"{needs}; the system kills it"
    if available < smallest:
        means = "if its optimizer is offloaded" if cards else "to train on the CPU"
        return "little", Severity.WARNING, f"{needs}, with SmolLM2-135M {format_bytes(smallest)} {means}"
    offloaded, on_cards = available / HOST_BYTES_PER_OFFLOADED_PARAMETER, cards / FULL_TRAINING_BYTES
    if offloaded < on_cards:
        why = (
            f"an offloaded optimizer needs {HOST_BYTES_PER_OFFLOADED_PARAMETER} bytes per trained parameter: host "
            f"memory has room for {offloaded / 1e9:.1f} billion, the cards alone train {on_cards / 1e9:.1f} billion"
        )
        return "no_offload", Severity.WARNING if limited else Severity.NOTE, why
    return "enough", Severity.OK, ""


def shares_ram(device: Device, host: Host) -> bool:
    """Whether a card has no memory of its own, as on Jetson."""
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
        yield remedy("stop_programs")
    if _limited(host) and host.container == "kubernetes":
        yield remedy("memory_of_pod")
    elif _limited(host):
        yield run_container(host, "memory_of_container") if host.container else remedy("memory_of_job")
    if host.wsl:
        yield remedy("wsl_memory")
    yield remedy("train_adapters")


def check_cpu(hardware: Hardware) -> Iterator[Finding]:
    """Cores, threads and vector instructions; most important if the CPU is the device."""
    host = hardware.host
    if host.platform.endswith("x86_64") and host.cpu_features and "avx2" not in host.cpu_features:
        severity, affected = (Severity.NOTE, "offload") if hardware.devices else (Severity.WARNING, "training")
        what = f"{host.cpu_name} has no `avx2`"
        yield finding("cpu.no_avx2", what, remedy("plain_optimizer"), severity=severity, affects=(affected,))
    else:
        shown = [name for name in SHOWN_FEATURES if name in host.cpu_features]
        known = f" with {', '.join(shown)}" if shown else ""
        what = f"{host.cpu_name}, {_cores(host)} usable{known}"
        yield ok("cpu.usable", what, "/proc/cpuinfo", "affinity", "cgroup")
    if not hardware.devices:
        yield from _threads(hardware)


def _threads(hardware: Hardware) -> Iterator[Finding]:
    """What OMP_NUM_THREADS means for training on the CPU."""
    cores = hardware.host.num_cores
    number = re.match(r"\s*(\d+)", hardware.environment.get("OMP_NUM_THREADS", ""))
    threads = int(number.group(1)) if number else 0
    if threads == 0 or cores // 2 < threads <= cores:
        return
    few = threads < cores
    yield finding(
        "cpu.few_threads" if few else "cpu.many_threads",
        f"`OMP_NUM_THREADS={threads}`, but {_cores(hardware.host)} usable",
        shell("let torch use all available cores", f"export OMP_NUM_THREADS={cores}"),
    )


def _cores(host: Host) -> str:
    return f"{host.num_cores} core" + ("s" if host.num_cores != 1 else "")


def check_file_descriptors(hardware: Hardware) -> Iterator[Finding]:
    """Whether enough files and sockets may be open: a run needs few, workers on many GPUs need more."""
    limit, num_devices = hardware.host.file_descriptor_limit, len(hardware.devices)
    if limit is None:
        return
    what = f"a process may open {'any number of' if limit < 0 else limit} files"
    if 0 <= limit < FEW_FILES:
        yield finding("file_descriptors.few", what, remedy("raise_limit", limit=ENOUGH_FILES))
    elif 0 <= limit < ENOUGH_FILES and num_devices >= MANY_DEVICES:
        yield finding("file_descriptors.few_for_workers", what, remedy("raise_limit", limit=ENOUGH_FILES))
    else:
        yield ok("file_descriptors.enough", what, "RLIMIT_NOFILE")


def check_terminal(hardware: Hardware) -> Iterator[Finding]:
    """Whether Python reads and writes text as UTF-8."""
    encoding = hardware.host.locale_encoding
    if encoding is None:
        return
    what = f"Python reads and writes text as `{encoding}`"
    if is_utf8(encoding):
        yield ok("terminal.utf8", what, "locale")
        return
    yield finding("terminal.encoding", what, remedy("utf8_in_python"), remedy("utf8_locale"))


def is_utf8(encoding: str) -> bool:
    """Whether the name, in any spelling, means UTF-8."""
    try:
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    except LookupError:
        return False


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
        remedy("mount_volume") if host.container == "kubernetes" else run_container(host, "mount_folder"),
        affects=tuple(dict.fromkeys(folder.role for folder in lost)),
    )


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
