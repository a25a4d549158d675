"""What CUDA said when torch asked it for its devices, and what mends it on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rl_compat.doctor.checks.device_nodes import start_with_gpus
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import shell, unset
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Hardware, TorchBuild

UVM = "/dev/nvidia-uvm"
COMPUTE = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
"asks NVIDIA's container toolkit for the libraries that CUDA programs need"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One error of CUDA's start."""

    case: str
    pattern: str
    why: str
    remedies: Callable[[Hardware], tuple[Remedy, ...]]


def answer_of(hardware: Hardware, torch: TorchBuild) -> Finding:
    """Why CUDA gives torch no device, or not this one. A failure unless another card than `cuda:0` is meant."""
    error = torch.cuda_error or ""
    answer = answer_to(hardware, torch)
    unread = re.match(r"cuda:(\d+): ", error)
    devices = [int(unread.group(1))] if unread else [device.index for device in hardware.devices]
    said = f": {error}" if error else " and gives no reason"
    count = len(hardware.devices)
    what = (
        f"CUDA does not answer for `cuda:{devices[0]}`: {error.partition(': ')[2]}"
        if unread
        else f"the driver lists {count} usable {'GPU' if count == 1 else 'GPUs'}, CUDA gives torch {torch.version} "
        f"none{said}"
    )
    return Finding(
        id=f"torch_driver.{answer.case}",
        severity=Severity.WARNING if unread and devices[0] > 0 else Severity.FAILURE,
        what=what,
        why=answer.why,
        where=("torch", "nvml"),
        affects=tuple(f"cuda:{index}" for index in devices),
        remedies=answer.remedies(hardware),
    )


def answer_to(hardware: Hardware, torch: TorchBuild) -> Answer:
    """What the error means; without one, what the driver's own facts say."""
    said = torch.cuda_error or _hint(hardware)
    return next(answer for answer in ANSWERS if re.search(answer.pattern, said, re.IGNORECASE))


def _hint(hardware: Hardware) -> str:
    """What CUDA would have said, where it gave no reason and the driver's own facts give one."""
    if any(device.compute_mode not in (None, "default") for device in hardware.devices):
        return "unavailable"
    nodes = hardware.driver.device_nodes
    return "initialization error" if nodes is not None and UVM not in nodes and not hardware.host.wsl else ""


def _on_the_host(hardware: Hardware, what: str, *commands: str, sure: Sureness = Sureness.PASTE) -> Remedy:
    """Something that the machine's administrator does; in a container the host's."""
    if hardware.host.wsl:
        return Remedy(what=f"{what}; under WSL the driver belongs to Windows: update it there", step=Step.DRIVER)
    where = "on the host, not in this container: " if hardware.host.container else ""
    return Remedy(what=where + what, step=Step.DRIVER, commands=commands, sure=sure)


def _fabric_manager(hardware: Hardware) -> tuple[Remedy, ...]:
    version = hardware.driver.version
    package = f"nvidia-fabricmanager-{parse_version(version)[0]}" if version else "nvidia-fabricmanager-BRANCH"
    exactly = f"{version}, the version of the driver" if version else "exactly the driver's version"
    what = f"install and start NVIDIA's fabric manager of {exactly}"
    start = "sudo systemctl enable --now nvidia-fabricmanager"
    return (_on_the_host(hardware, what, f"sudo apt-get install {package}", start, sure=Sureness.UNSURE),)


def _two_drivers(hardware: Hardware) -> tuple[Remedy, ...]:
    """A libcuda of another release than the kernel's module, since an update.

    None where the check `libraries` has them: it names a folder with another driver's library, a compat folder's too.
    """
    library, version = hardware.driver.cuda_library or "", hardware.driver.cuda_library_version
    paths = hardware.environment.get("LD_LIBRARY_PATH", "")
    if "compat" in library + paths or version not in (None, hardware.driver.module_version):
        return ()
    restart = _on_the_host(hardware, "restart the machine, so that the kernel loads the module of the new driver")
    older = Remedy(what="use an image whose CUDA is not newer than the host's driver", step=Step.CONTAINER, commands=())
    return (older, restart) if hardware.host.container else (restart,)


def _nodes(hardware: Hardware) -> tuple[Remedy, ...]:
    """The unified-memory device is missing, or its module has to be loaded again."""
    nodes = hardware.driver.device_nodes
    if hardware.driver.closed_device_nodes:
        return _permission(hardware)
    missing = nodes is not None and UVM not in nodes
    reload = "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"
    load = _on_the_host(hardware, "load the module of unified memory again, as after a suspend", reload)
    if missing and hardware.host.container:
        return (_container(hardware), load)
    restart = _on_the_host(hardware, "restart the machine")
    return (load, restart)


def _permission(hardware: Hardware) -> tuple[Remedy, ...]:
    closed = ", ".join(hardware.driver.closed_device_nodes)
    what = f"let this user open {closed}: join the group that owns them and log in again"
    return (Remedy(what=what, step=Step.SYSTEM, commands=("sudo usermod -aG video $USER",), sure=Sureness.UNSURE),)


def _container(hardware: Hardware) -> Remedy:
    """Start it with the cards; Docker is told too which of the driver's libraries are wanted."""
    nodes, start = hardware.driver.device_nodes, start_with_gpus(hardware.host.container)
    missing = f"`{UVM}` is not in this container: " if nodes is not None and UVM not in nodes else ""
    commands = tuple(line.replace("--gpus all", f"--gpus all -e {COMPUTE}") for line in start.commands)
    return replace(start, what=missing + start.what, commands=commands)


def _no_library(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.host.container:
        return (_container(hardware),)
    return (_on_the_host(hardware, "install the driver's compute library `libcuda.so.1`, of the driver's version"),)


def _no_device(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.driver.closed_device_nodes:
        return _permission(hardware)
    value = hardware.environment.get("CUDA_VISIBLE_DEVICES")
    hidden = (unset("CUDA_VISIBLE_DEVICES"),) if value is not None else ()
    return (*hidden, *_nodes(hardware))


def _free_memory(hardware: Hardware) -> tuple[Remedy, ...]:
    look = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
    return (shell("see who holds the memory (`memory` lists them), and wait or ask", look),)


def _shared_mode(hardware: Hardware) -> tuple[Remedy, ...]:
    modes = {device.compute_mode for device in hardware.devices} - {None, "default"}
    if modes:
        what = f"the compute mode is {' and '.join(sorted(map(str, modes)))}: set it to default"
        return (_on_the_host(hardware, what, "sudo nvidia-smi --compute-mode=DEFAULT"),)
    return (*_free_memory(hardware), _on_the_host(hardware, "restart the machine when nobody uses the card"))


def _mps(hardware: Hardware) -> tuple[Remedy, ...]:
    start = _on_the_host(hardware, "start the server of NVIDIA's Multi-Process Service", "nvidia-cuda-mps-control -d")
    return (shell("do without it", "unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY"), start)


def _lost(hardware: Hardware) -> tuple[Remedy, ...]:
    return (_on_the_host(hardware, "see what the kernel says of the card and restart the machine", "sudo dmesg"),)


def _look(hardware: Hardware) -> tuple[Remedy, ...]:
    python = hardware.software.executable or "python"
    command = f"{python} -c 'import torch; torch.cuda.init(); print(torch.cuda.device_count())'"
    return (shell("see CUDA's own words", command), *_nodes(hardware))


ANSWERS = (
    Answer(
        case="fabric_manager",
        pattern=r"\b802\b|system not yet initialized|SystemNotReady",
        why="cards that are joined by NVSwitch wait for the fabric manager",
        remedies=_fabric_manager,
    ),
    Answer(
        case="two_drivers",
        pattern=r"\b803\b|unsupported display driver|SystemDriverMismatch|driver/library version mismatch",
        why="the library libcuda and the kernel's module are of different driver releases; where two are found the "
        "check `libraries` names the folder",
        remedies=_two_drivers,
    ),
    Answer(
        case="forward_compatibility",
        pattern=r"\b804\b|forward compatibility was attempted|CompatNotSupported",
        why="a newer libcuda from a compat folder is found first, which only data-centre cards may use; the check "
        "`libraries` names the folder",
        remedies=_two_drivers,
    ),
    Answer(
        case="mps",
        pattern=r"\b80[567]\b|MPS",
        why="this process is told to use the Multi-Process Service, which does not answer",
        remedies=_mps,
    ),
    Answer(
        case="out_of_memory",
        pattern=r"out of memory",
        why="there is not even room for CUDA's context, some 300 MiB",
        remedies=_free_memory,
    ),
    Answer(
        case="unavailable",
        pattern=r"busy or unavailable|DevicesUnavailable|^unavailable|device.{0,20}unavailable|exclusive",
        why="another process holds the card alone, or nobody may compute on it",
        remedies=_shared_mode,
    ),
    Answer(
        case="lost",
        pattern=r"uncorrectable ECC|GPU is lost|fallen off the bus|HardwareStackError|unspecified launch failure",
        why="the card stopped working: heat, power or a fault of its memory",
        remedies=_lost,
    ),
    Answer(
        case="no_library",
        pattern=r"found no NVIDIA driver|libcuda\S*: cannot open|stub library",
        why="the card is there and the library that programs talk to it with is not",
        remedies=_no_library,
    ),
    Answer(
        case="no_device",
        pattern=r"no CUDA-capable device|invalid device ordinal|\berror 10[01]\b",
        why="CUDA finds none of the cards that the driver lists",
        remedies=_no_device,
    ),
    Answer(
        case="not_initialised",
        pattern=r"initialization error|not initialized|\berror 3\b|unknown error|\b999\b|OS call failed|\b304\b",
        why="the driver is loaded and its unified-memory part does not answer, as after a suspend or in a container "
        "that has no `/dev/nvidia-uvm`",
        remedies=_nodes,
    ),
    Answer(
        case="silent",
        pattern=r"",
        why="no GPU can be used until CUDA answers",
        remedies=_look,
    ),
)
"the first one that matches counts; the last one always does"
