"""Which GPUs this process has, and what keeps it from the others: the driver, a mode of the card, its device file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from rl_compat.doctor.checks.cards import driver, visible_devices
from rl_compat.doctor.checks.cards.health import LOST, check_card_health
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding, ok, remedy
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import Card, all_cards, computing, device_ids, names
from rl_compat.doctor.tables.drivers import install_driver, why_unlisted
from rl_compat.doctor.tables.rows import capability_text
from rl_compat.doctor.tables.target import has_a_build
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes

EXCLUSIVE = ("exclusive_process", "exclusive_thread")
VISIBLE = "CUDA_VISIBLE_DEVICES"
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


def check_gpu(hardware: Hardware) -> Iterator[Finding]:
    """The GPUs that CUDA shows, or why it shows none."""
    if hardware.emulated is not None:
        yield ok("gpu.emulated", f"`{hardware.emulated}` is emulated")
        return
    found = [
        *_visible(hardware),
        *check_compute_mode(hardware),
        *_hidden(hardware),
        *_unshown(hardware),
        *check_pci_cards(hardware),
        *check_card_health(hardware),
        *check_device_nodes(hardware),
    ]
    yield from found
    if not hardware.devices and max((finding.severity for finding in found), default=0) < Severity.WARNING:
        yield _none(hardware)


def _visible(hardware: Hardware) -> Iterator[Finding]:
    if not hardware.devices:
        return
    listed = ", ".join(
        f"cuda:{device.index} {device.name} ({capability_text(device.compute_capability)}, "
        f"{format_bytes(device.memory_total_bytes)})"
        for device in hardware.devices
    )
    where = sorted({source for device in hardware.devices for source in device.sources.values()})
    what = f"{len(hardware.devices)} visible: {listed}"
    yield ok("gpu.visible", what, *where, affects=device_ids(hardware.devices))


def _hidden(hardware: Hardware) -> Iterator[Finding]:
    value = hardware.environment.get(VISIBLE)
    hidden = [device for device in hardware.hidden_devices if not _unusable(device)]
    if value is None or not hidden or (not hardware.devices and not visible_devices.means_no_gpu(value)):
        return
    what = f"{VISIBLE}=`{value}` hides {'some GPUs' if hardware.devices else 'every GPU'}: {names(hidden)}"
    if hardware.devices or not any(has_a_build(hardware, device.compute_capability) for device in hidden):
        without = "" if hardware.devices else "; no torch supports them"
        yield ok("gpu.hidden", what + without, "nvml", VISIBLE)
        return
    yield finding("gpu.all_hidden", what, unset(VISIBLE))


def _unshown(hardware: Hardware) -> Iterator[Finding]:
    """Cards that NVML lists and CUDA does not, without being told to. `mig` reports MIG mode without slices."""
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    unexplained = []
    for device in hardware.hidden_devices:
        if device.compute_mode == "prohibited":
            yield _prohibited(hardware, device, f"GPU {device.index} of nvidia-smi,", severity)
        elif device.mig_slices is None and VISIBLE not in hardware.environment:
            unexplained.append(device)
    if unexplained and not any(device.mig_profile for device in hardware.devices):
        yield finding(
            "gpu.not_shown",
            f"NVML lists {names(unexplained)}, but CUDA does not show it although {VISIBLE} is not set",
            remedy("see_unshown"),
            severity=severity,
        )


def check_compute_mode(hardware: Hardware) -> Iterator[Finding]:
    """Visible cards whose compute mode excludes other processes."""
    for device in hardware.devices:
        id = f"cuda:{device.index}"
        others = [str(process.pid) for process in computing(device)]
        what = f"{id} `{device.name}` accepts a single process (compute mode `{device.compute_mode}`)"
        if device.compute_mode == "prohibited":
            yield _prohibited(hardware, device, id, Severity.FAILURE)
        elif device.compute_mode in EXCLUSIVE and others:
            look = shell("see who owns the process", f"ps -o pid,user,etime,args -p {','.join(others)}")
            yield finding(
                "gpu.taken",
                f"{what}, and process {', '.join(others)} uses it",
                _set_mode(hardware, device),
                look,
                affects=(id, "training"),
            )
        elif device.compute_mode in EXCLUSIVE:
            yield finding("gpu.exclusive", what, _set_mode(hardware, device), affects=(id, "rollout"))


def keeps_out(device: Device) -> bool:
    """Whether the compute mode alone explains that a new program cannot use the card."""
    return device.compute_mode == "prohibited" or (device.compute_mode in EXCLUSIVE and bool(computing(device)))


def _prohibited(hardware: Hardware, device: Device, where: str, severity: Severity) -> Finding:
    return finding(
        "gpu.prohibited",
        f"{where} `{device.name}` is in compute mode `prohibited`",
        _set_mode(hardware, device),
        severity=severity,
    )


def _set_mode(hardware: Hardware, device: Device) -> Remedy:
    index = device.nvml_index if device.nvml_index is not None else device.index
    if hardware.host.container:
        return remedy("share_card_on_host")
    return remedy("share_card", card=device.uuid or index)


def check_pci_cards(hardware: Hardware) -> Iterator[Finding]:
    """Cards on the PCI bus only, unless the driver or its kernel module explains them."""
    if hardware.host.container and not hardware.devices:
        return
    by_reason: dict[str | None, list[Card]] = {}
    for card in all_cards(hardware):
        by_reason.setdefault(why_unlisted(hardware, card), []).append(card)
    severity = Severity.WARNING if hardware.devices else Severity.FAILURE
    if cards := by_reason.get("nouveau"):
        what = f"{_at_places(cards)} uses the kernel's own driver `{cards[0].kernel_driver}`"
        yield finding("gpu.nouveau", what, install_driver(hardware, cards), severity=severity)
    if cards := by_reason.get("reserved"):
        what = f"{_at_places(cards)} is reserved for a virtual machine (`{cards[0].kernel_driver}`)"
        release = () if hardware.devices else (remedy("release_from_vfio"),)
        yield finding("gpu.reserved", what, *release, severity=Severity.OK if hardware.devices else Severity.WARNING)
    withheld = hardware.host.container or hardware.driver.closed_device_nodes
    silent = by_reason.get("silent", []) if hardware.driver.nvml_error is None and not withheld else []
    if "refused" in by_reason or (silent and not any(LOST.search(text) for text in hardware.warnings)):
        cards = [*by_reason.get("refused", []), *silent]
        version = hardware.driver.module_version or hardware.driver.version
        space = (remedy("above_4g"),) if any(card.large_bar for card in cards) else ()
        what = f"driver {version} is loaded but does not list {_at_places(cards)}"
        yield finding("gpu.refused", what, remedy("see_refused"), *space, severity=severity)


def _none(hardware: Hardware) -> Finding:
    """No GPU: CPU mode, or the finding that explains it."""
    on_purpose = visible_devices.hides_every_gpu(hardware)
    others = chain(
        driver.check_driver(hardware),
        driver.check_kernel_module(hardware),
        visible_devices.check_visible_devices(hardware),
        driver.check_nvml(hardware),
    )
    causes = [other.id for other in others if other.severity >= Severity.WARNING]
    cards = all_cards(hardware)
    causes += ["mig.no_slices" for device in hardware.hidden_devices if _unusable(device)]
    if not causes and not on_purpose and (cards or hardware.driver.version):
        return _unreachable(hardware, cards)
    if hardware.other_gpus and not causes and not cards:
        return finding("gpu.other_vendor", f"no NVIDIA GPU, but {', '.join(hardware.other_gpus)}: CPU mode")
    what = f"no {'usable' if on_purpose else 'NVIDIA'} GPU: CPU mode"
    if causes:
        what = f"no usable GPU, see `{causes[0]}`: CPU mode until that is fixed"
    return finding(
        "gpu.none",
        what,
        *((remedy("update_wsl"),) if hardware.host.wsl and not causes else ()),
        severity=Severity.OK if causes else Severity.NOTE,
        where=("nvml", "PCI bus") if hardware.pci_gpus is not None else ("nvml",),
    )


def _unreachable(hardware: Hardware, cards: tuple[Card, ...]) -> Finding:
    what = f"{names(cards)} cannot be reached" if cards else f"driver {hardware.driver.version} lists no card"
    error = hardware.driver.nvml_error
    return finding(
        "gpu.unreachable",
        f"{what}{f': {error}' if error else ''}",
        remedy("see_unreachable"),
        severity=Severity.FAILURE if cards else Severity.WARNING,
    )


def _unusable(device: Device) -> bool:
    """Whether CUDA cannot use a card whatever CUDA_VISIBLE_DEVICES contains."""
    return device.mig_slices == 0 or device.compute_mode == "prohibited"


def _at_places(cards: list[Card]) -> str:
    return f"{names(cards)} at {', '.join(card.where for card in cards)}"


def check_device_nodes(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding, and only if CUDA does not work."""
    torch, driver = hardware.software.torch, hardware.driver
    lost_by_container = hardware.host.container and "unknown error" in (driver.nvml_error or "").lower()
    if lost_by_container or (torch is not None and torch.cuda_available):
        return
    closed = [node for node in driver.closed_device_nodes if NEEDED.fullmatch(node)]
    if closed and (not hardware.devices or UVM in closed):
        group = remedy("join_group", files=" ".join(closed))
        remedies = (remedy("keep_groups"), group) if hardware.host.container else (group,)
        yield finding("gpu.nodes_closed", f"this process has no permission to open {', '.join(closed)}", *remedies)
    elif _container_without_gpus(hardware):
        yield _not_in_container(hardware)
    elif _not_created(hardware):
        what = "the driver is loaded but the device file `/dev/nvidia0` does not exist"
        yield finding("gpu.no_nodes", what, remedy("create_nodes"))


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
        return remedy("request_card")
    what = "start the container with the cards; the host needs the NVIDIA Container Toolkit"
    commands = START_WITH_GPUS.get(container or "", ("docker run --gpus all IMAGE",))
    return Remedy(what, Step.CONTAINER, commands, Certainty.PLACEHOLDER)


def _not_created(hardware: Hardware) -> bool:
    silent = any(why_unlisted(hardware, card) == "silent" for card in all_cards(hardware))
    return silent and hardware.driver.device_nodes == () and not hardware.host.container and not hardware.devices
