"""Whether the driver supports the CUDA version of torch, and why CUDA does not answer if it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.checks.cards.gpu import UVM, keeps_out, start_with_gpus
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding, ok, remedy
from rl_compat.doctor.remedies import shell, torch_remedies, unset, update_driver
from rl_compat.doctor.tables.cards import device_ids
from rl_compat.doctor.tables.rows import Row, first_match
from rl_compat.doctor.tables.target import known_driver, newest_cuda, target_of
from rl_compat.doctor.tables.torch import needed_driver
from rl_compat.hardware.types import Hardware, TorchBuild

COMPUTE = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
"makes the NVIDIA Container Toolkit mount the libraries that CUDA programs need"


def check_torch_driver(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for a build without CUDA, without a driver, for an emulated card, or if another check explains why CUDA
    does not answer: driver libraries that do not match the module, or a compute mode that excludes programs.
    """
    torch = hardware.software.torch
    if torch is None or torch.cuda is None or hardware.emulated is not None or _explained(hardware, torch):
        return
    found = newest_cuda(hardware)
    if found is None and known_driver(hardware) is None:
        if not torch.cuda_available and hardware.devices:
            yield start_error(hardware, torch)
    elif torch.cuda_available:
        unread = re.match(r"cuda:(\d+): ", torch.cuda_error or "")
        yield start_error(hardware, torch) if unread else _works(hardware, torch.version, torch.cuda, found)
    elif driver_fits(hardware, torch) is False:
        yield _too_old(hardware, torch, found)
    elif hardware.devices:
        yield start_error(hardware, torch)


def _explained(hardware: Hardware, torch: TorchBuild) -> bool:
    if "version mismatch" in (hardware.driver.nvml_error or "").lower():
        return True
    unread = re.match(r"cuda:(\d+): ", torch.cuda_error or "")
    silent = [device for device in hardware.devices if not unread or device.index == int(unread.group(1))]
    fails = unread is not None or not torch.cuda_available
    return fails and bool(silent) and all(keeps_out(device) for device in silent)


def driver_fits(hardware: Hardware, torch: TorchBuild) -> bool | None:
    """Whether the driver runs the compiled code of a CUDA build; None if the table does not list that CUDA version."""
    assert torch.cuda is not None
    if re.search(r"driver on your system is too old", torch.cuda_error or ""):
        return False
    needed, driver = needed_driver(torch.cuda), known_driver(hardware)
    if needed is None or driver is None:
        return None
    return parse_version(driver) >= parse_version(needed)


def _works(hardware: Hardware, torch: str, cuda: str, found: str | None) -> Finding:
    older = found is not None and parse_version(found) < parse_version(cuda)
    needed = needed_driver(cuda, full=True)
    why = (
        f"compiled code runs on every driver for CUDA {cuda.partition('.')[0]}; code compiled during a run (NVRTC) "
        f"needs driver {needed or 'of that CUDA version'}"
    )
    what = f"CUDA answers: {_driver(hardware, found)}, torch {torch} is built for CUDA {cuda}"
    return ok("torch_driver.works", what, "torch", "driver", why=why if older else "")


def _too_old(hardware: Hardware, torch: TorchBuild, found: str | None) -> Finding:
    """Two remedies: a torch for an older CUDA version, or a newer driver."""
    assert torch.cuda is not None
    needed = needed_driver(torch.cuda)
    newer = (update_driver(hardware, needed),) if needed else ()
    return finding(
        "torch_driver.too_old",
        f"{_driver(hardware, found)}, but torch {torch.version} needs CUDA {torch.cuda.partition('.')[0]}.x"
        + (f", that is driver {needed} or newer" if needed else ""),
        *(torch_remedies(hardware) if target_of(hardware).best() else ()),
        *newer,
        affects=device_ids(hardware.devices),
    )


def _driver(hardware: Hardware, found: str | None) -> str:
    version = f"driver {hardware.driver.version}" if hardware.driver.version else "the driver"
    return f"{version} supports up to CUDA {found}" if found else f"{version} is loaded"


def start_error(hardware: Hardware, torch: TorchBuild) -> Finding:
    """Why CUDA gives torch no device, or not this one. A failure unless only another card than `cuda:0` fails."""
    error = torch.cuda_error or ""
    known = classify_start_error(hardware, torch)
    unread = re.match(r"cuda:(\d+): ", error)
    devices = [int(unread.group(1))] if unread else [device.index for device in hardware.devices]
    usable = f"{len(hardware.devices)} usable {'GPU' if len(hardware.devices) == 1 else 'GPUs'}"
    what = (
        f"CUDA does not answer for `cuda:{devices[0]}`: {error.partition(': ')[2]}"
        if unread
        else f"the driver lists {usable}, but CUDA gives torch {torch.version} none"
        + (f": {error}" if error else ", without a reason")
    )
    return Finding(
        f"torch_driver.{known['id']}",
        Severity.WARNING if unread and devices[0] > 0 else Severity.FAILURE,
        what,
        known["why"],
        where=("torch", "nvml"),
        affects=tuple(f"cuda:{index}" for index in devices),
        remedies=REMEDIES[known["id"]](hardware),
    )


def classify_start_error(hardware: Hardware, torch: TorchBuild) -> Row:
    """What the error means; if there is none, what the state of the driver suggests."""
    error = torch.cuda_error or _likely_error(hardware)
    return first_match("start", error)


def _likely_error(hardware: Hardware) -> str:
    if any(device.compute_mode not in (None, "default") for device in hardware.devices):
        return "unavailable"
    nodes = hardware.driver.device_nodes
    return "initialization error" if nodes is not None and UVM not in nodes and not hardware.host.wsl else ""


def _on_the_host(hardware: Hardware, what: str, *commands: str, certainty: Certainty = Certainty.READY) -> Remedy:
    """A task for the administrator of the machine; in a container, on the host."""
    if hardware.host.wsl:
        return Remedy(f"{what}; under WSL the driver belongs to Windows: update it there", Step.DRIVER)
    where = "on the host, not in this container: " if hardware.host.container else ""
    return Remedy(where + what, Step.DRIVER, commands, certainty)


def _fabric_manager(hardware: Hardware) -> tuple[Remedy, ...]:
    version = hardware.driver.version
    package = f"nvidia-fabricmanager-{parse_version(version)[0]}" if version else "nvidia-fabricmanager-BRANCH"
    exactly = f"{version}, the version of the driver" if version else "exactly the version of the driver"
    what = f"install and start NVIDIA's fabric manager {exactly}"
    start = "sudo systemctl enable --now nvidia-fabricmanager"
    return (_on_the_host(hardware, what, f"sudo apt-get install {package}", start, certainty=Certainty.UNCERTAIN),)


def _two_drivers(hardware: Hardware) -> tuple[Remedy, ...]:
    """A libcuda of another release than the kernel module, after an update.

    Empty if the check `libraries` has the remedy: it names a folder with the library of another driver.
    """
    library, version = hardware.driver.cuda_library or "", hardware.driver.cuda_library_version
    paths = hardware.environment.get("LD_LIBRARY_PATH", "")
    if "compat" in library + paths or version not in (None, hardware.driver.module_version):
        return ()
    restart = _on_the_host(hardware, "restart the machine, so that the kernel loads the module of the new driver")
    return (remedy("older_image"), restart) if hardware.host.container else (restart,)


def _nodes(hardware: Hardware) -> tuple[Remedy, ...]:
    """The unified-memory device is missing, or its module has to be loaded again."""
    nodes = hardware.driver.device_nodes
    if hardware.driver.closed_device_nodes:
        return _permission(hardware)
    missing = nodes is not None and UVM not in nodes
    reload = "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"
    load = _on_the_host(hardware, "reload the module of unified memory, as after a suspend", reload)
    if missing and hardware.host.container:
        return (_container(hardware), load)
    return (load, _on_the_host(hardware, "restart the machine"))


def _permission(hardware: Hardware) -> tuple[Remedy, ...]:
    return (remedy("open_nodes", files=", ".join(hardware.driver.closed_device_nodes)),)


def _container(hardware: Hardware) -> Remedy:
    """Start it with the cards; Docker also needs to know which of the driver's libraries to mount."""
    nodes, start = hardware.driver.device_nodes, start_with_gpus(hardware.host.container)
    missing = f"`{UVM}` is not in this container: " if nodes is not None and UVM not in nodes else ""
    commands = tuple(line.replace("--gpus all", f"--gpus all -e {COMPUTE}") for line in start.commands)
    return replace(start, what=missing + start.what, commands=commands)


def _no_library(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.host.container:
        return (_container(hardware),)
    return (_on_the_host(hardware, "install the driver's compute library `libcuda.so.1` of the same version"),)


def _no_device(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.driver.closed_device_nodes:
        return _permission(hardware)
    value = hardware.environment.get("CUDA_VISIBLE_DEVICES")
    hidden = (unset("CUDA_VISIBLE_DEVICES"),) if value is not None else ()
    return (*hidden, *_nodes(hardware))


def _shared_mode(hardware: Hardware) -> tuple[Remedy, ...]:
    modes = {device.compute_mode for device in hardware.devices} - {None, "default"}
    if modes:
        what = f"the compute mode is {' and '.join(sorted(map(str, modes)))}: set it to default"
        return (_on_the_host(hardware, what, "sudo nvidia-smi --compute-mode=DEFAULT"),)
    return (remedy("free_memory"), _on_the_host(hardware, "restart the machine while nobody uses the card"))


def _mps(hardware: Hardware) -> tuple[Remedy, ...]:
    start = _on_the_host(hardware, "start the server of NVIDIA's Multi-Process Service", "nvidia-cuda-mps-control -d")
    return (remedy("run_without_mps"), start)


def _look(hardware: Hardware) -> tuple[Remedy, ...]:
    python = hardware.software.executable or "python"
    command = f"{python} -c 'import torch; torch.cuda.init(); print(torch.cuda.device_count())'"
    return (shell("see the error message of CUDA", command), *_nodes(hardware))


REMEDIES: Mapping[str, Callable[[Hardware], tuple[Remedy, ...]]] = {
    "fabric_manager": _fabric_manager,
    "two_drivers": _two_drivers,
    "forward_compatibility": _two_drivers,
    "mps": _mps,
    "out_of_memory": lambda hardware: (remedy("free_memory"),),
    "unavailable": _shared_mode,
    "lost": lambda hardware: (
        _on_the_host(hardware, "read the kernel log about the card, then restart the machine", "sudo dmesg"),
    ),
    "no_library": _no_library,
    "no_device": _no_device,
    "not_initialised": _nodes,
    "silent": _look,
}
"by the id of the error"
