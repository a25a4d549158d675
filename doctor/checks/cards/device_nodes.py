"""The device files through which a process reaches a GPU: missing in a container, not permitted, or not created."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding
from rl_compat.doctor.tables.cards import all_cards, names
from rl_compat.doctor.tables.drivers import why_unlisted
from rl_compat.hardware.types import Hardware

NEEDED = re.compile(r"/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|dxg)")
UVM = "/dev/nvidia-uvm"
NO_GPUS = ("void", "none", "")
"values of NVIDIA_VISIBLE_DEVICES that ask for no GPU"
START_WITH_GPUS = {
    "podman": ("podman run --device nvidia.com/gpu=all IMAGE",),
    "lxc": ("lxc config device add CONTAINER gpu gpu", "lxc config set CONTAINER nvidia.runtime true"),
    "apptainer": ("apptainer exec --nv IMAGE COMMAND",),
    "singularity": ("singularity exec --nv IMAGE COMMAND",),
}


def check_device_nodes(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding, and only if CUDA does not work."""
    torch, driver = hardware.software.torch, hardware.driver
    lost_by_container = hardware.host.container and "unknown error" in (driver.nvml_error or "").lower()
    if lost_by_container or (torch is not None and torch.cuda_available):
        return
    closed = [node for node in driver.closed_device_nodes if NEEDED.fullmatch(node)]
    if closed and (not hardware.devices or UVM in closed):
        yield _closed(hardware, closed)
    elif _container_without_gpus(hardware):
        yield _not_in_container(hardware)
    elif _not_created(hardware):
        create = "let NVIDIA's helper load the module and create the files"
        yield finding(
            "gpu.no_nodes",
            "the driver is loaded but the device file `/dev/nvidia0` does not exist",
            Remedy(create, Step.SYSTEM, ("sudo nvidia-modprobe -c 0 -u",)),
        )


def _closed(hardware: Hardware, closed: list[str]) -> Finding:
    group = Remedy(
        "see which group owns the files, usually `video` or `render`; join it and log in again",
        Step.SYSTEM,
        (f"ls -l {' '.join(closed)}", 'sudo usermod -aG video,render "$USER"'),
        Certainty.UNCERTAIN,
    )
    keep = Remedy(
        "start the container with the groups of the user who starts it, and disable its SELinux label",
        Step.CONTAINER,
        ("podman run --group-add keep-groups --security-opt label=disable --device nvidia.com/gpu=all IMAGE",),
        Certainty.PLACEHOLDER,
    )
    return finding(
        "gpu.nodes_closed",
        f"this process has no permission to open {', '.join(closed)}",
        *((keep, group) if hardware.host.container else (group,)),
    )


def _container_without_gpus(hardware: Hardware) -> bool:
    """Whether the host has NVIDIA's driver but the container was started without a card."""
    driver = hardware.driver
    if not hardware.host.container or hardware.devices or hardware.hidden_devices or driver.device_nodes:
        return False
    on_host = driver.version or driver.module_version
    bound = any(gpu.kernel_driver == "nvidia" for gpu in hardware.pci_gpus or ())
    return bool(on_host or bound) and (driver.device_nodes is not None or driver.nvml_error is not None)


def _not_in_container(hardware: Hardware) -> Finding:
    requested = hardware.environment.get("NVIDIA_VISIBLE_DEVICES")
    on_purpose = requested in NO_GPUS
    version = hardware.driver.module_version or hardware.driver.version
    host = f"the host has {names(all_cards(hardware)) or f'NVIDIA driver {version}'}"
    return finding(
        "gpu.not_given" if on_purpose else "gpu.not_in_container",
        f"{host}, but this container ({hardware.host.container}) has no device file for it"
        + (f": NVIDIA_VISIBLE_DEVICES=`{requested}`" if requested is not None else ""),
        start_with_gpus(hardware.host.container),
        severity=Severity.WARNING if on_purpose else Severity.FAILURE,
    )


def start_with_gpus(container: str | None) -> Remedy:
    """How to start a container of that kind with the cards."""
    if container == "kubernetes":
        what = "request a card with `nvidia.com/gpu: 1` under `resources.limits` of the pod; the cluster needs the "
        return Remedy(f"{what}NVIDIA device plugin", Step.CONTAINER)
    what = "start the container with the cards; the host needs the NVIDIA Container Toolkit"
    commands = START_WITH_GPUS.get(container or "", ("docker run --gpus all IMAGE",))
    return Remedy(what, Step.CONTAINER, commands, Certainty.PLACEHOLDER)


def _not_created(hardware: Hardware) -> bool:
    silent = any(why_unlisted(hardware, card) == "silent" for card in all_cards(hardware))
    return silent and hardware.driver.device_nodes == () and not hardware.host.container and not hardware.devices
