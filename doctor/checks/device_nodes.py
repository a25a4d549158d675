"""The device files through which a process reaches a GPU: absent in a container, closed, or not made."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.tables.cards import all_cards, names
from rl_compat.doctor.tables.drivers import why_unlisted
from rl_compat.hardware.types import Hardware

NEEDED = re.compile(r"/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|dxg)")
UVM = "/dev/nvidia-uvm"
NOT_GIVEN = ("void", "none", "")


def check_device_nodes(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding, and only where CUDA does not work."""
    torch, driver = hardware.software.torch, hardware.driver
    lost_by_container = hardware.host.container and "unknown error" in (driver.nvml_error or "").lower()
    if lost_by_container or (torch is not None and torch.cuda_available):
        return
    closed = [node for node in driver.closed_device_nodes if NEEDED.fullmatch(node)]
    if closed and (not hardware.devices or UVM in closed):
        yield _closed(hardware, closed)
    elif _container_without(hardware):
        yield _not_in_container(hardware)
    elif _none_made(hardware):
        yield _none_there()


def _closed(hardware: Hardware, closed: list[str]) -> Finding:
    group = Remedy(
        what="see which group they belong to, mostly `video` or `render`, join it and log in anew",
        step=Step.SYSTEM,
        commands=(f"ls -l {' '.join(closed)}", 'sudo usermod -aG video,render "$USER"'),
        sure=Sureness.UNSURE,
    )
    keep = Remedy(
        what="let the container keep the groups of the user who starts it, and switch its SELinux label off",
        step=Step.CONTAINER,
        commands=("podman run --group-add keep-groups --security-opt label=disable --device nvidia.com/gpu=all IMAGE",),
        sure=Sureness.PLACEHOLDER,
    )
    return Finding(
        id="gpu.nodes_closed",
        severity=Severity.FAILURE,
        what=f"this process may not open {', '.join(closed)}",
        why="CUDA finds no device. Within a scheduler's job it means that the job asked for no GPU",
        where=("/dev",),
        affects=("training",),
        remedies=(keep, group) if hardware.host.container else (group,),
    )


def _container_without(hardware: Hardware) -> bool:
    """Whether a container of a host with NVIDIA's driver was given no card."""
    driver = hardware.driver
    if not hardware.host.container or hardware.devices or hardware.hidden_devices or driver.device_nodes:
        return False
    on_host = driver.version or driver.module_version
    bound = any(gpu.kernel_driver == "nvidia" for gpu in hardware.pci_gpus or ())
    return bool(on_host or bound) and (driver.device_nodes is not None or driver.nvml_error is not None)


def _not_in_container(hardware: Hardware) -> Finding:
    asked = hardware.environment.get("NVIDIA_VISIBLE_DEVICES")
    on_purpose = asked in NOT_GIVEN
    version = hardware.driver.module_version or hardware.driver.version
    host = f"the host has {names(all_cards(hardware)) or f'NVIDIA driver {version}'}"
    return Finding(
        id="gpu.not_given" if on_purpose else "gpu.not_in_container",
        severity=Severity.WARNING if on_purpose else Severity.FAILURE,
        what=f"{host} and this container ({hardware.host.container}) has no device file of it"
        + (f": NVIDIA_VISIBLE_DEVICES=`{asked}`" if asked is not None else ""),
        why="the container was started without GPUs: training runs on the CPU",
        where=("/dev", "/proc/driver/nvidia"),
        affects=("training", "rollout"),
        remedies=(start_with_gpus(hardware.host.container),),
    )


def start_with_gpus(container: str | None) -> Remedy:
    """How a container of that kind is given the cards."""
    commands = {
        "podman": ("podman run --device nvidia.com/gpu=all IMAGE",),
        "lxc": ("lxc config device add CONTAINER gpu gpu", "lxc config set CONTAINER nvidia.runtime true"),
        "apptainer": ("apptainer exec --nv IMAGE COMMAND",),
        "singularity": ("singularity exec --nv IMAGE COMMAND",),
        "kubernetes": (),
    }
    in_pod = (
        "ask for a card in the pod's `resources.limits` with `nvidia.com/gpu: 1`; the cluster needs the device plugin"
    )
    return Remedy(
        what=in_pod
        if container == "kubernetes"
        else "start the container with the cards; the host needs NVIDIA's container toolkit",
        step=Step.CONTAINER,
        commands=commands.get(container or "", ("docker run --gpus all IMAGE",)),
        sure=Sureness.PASTE if container == "kubernetes" else Sureness.PLACEHOLDER,
    )


def _none_made(hardware: Hardware) -> bool:
    silent = any(why_unlisted(hardware, card) == "silent" for card in all_cards(hardware))
    return silent and hardware.driver.device_nodes == () and not hardware.host.container and not hardware.devices


def _none_there() -> Finding:
    make = Remedy(
        what="let NVIDIA's helper load the module and make the files",
        step=Step.SYSTEM,
        commands=("sudo nvidia-modprobe -c 0 -u",),
    )
    return Finding(
        id="gpu.no_nodes",
        severity=Severity.FAILURE,
        what="the driver is loaded and there is no device file `/dev/nvidia0`",
        why="programs reach the card through that file",
        where=("/dev",),
        affects=("training",),
        remedies=(make,),
    )
