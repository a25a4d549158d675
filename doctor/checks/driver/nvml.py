"""Whether NVML, the driver's own interface, answers. Training does not need it, the doctor does."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.binaries import TEGRA
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, ok
from rl_compat.doctor.remedies import WSL_LIBRARY_PATH, pip_install, shell
from rl_compat.doctor.tables.cards import all_cards, device_ids
from rl_compat.hardware.types import Hardware

INTEGRATED = TEGRA | {(11, 0)}
UNKNOWN = "memory use per process and the order of nvidia-smi are unknown; training itself is not affected"
CGROUP = (
    "a running container loses its cards when systemd reloads on the host (`systemctl daemon-reload`): "
    "running processes keep them, new ones find none"
)


def check_nvml(hardware: Hardware) -> Iterator[Finding]:
    """Nothing without a card or a driver, or if the driver itself is at fault."""
    driver = hardware.driver
    if hardware.emulated is not None or not (all_cards(hardware) or driver.version):
        return
    error = driver.nvml_error
    if error is None:
        devices = (*hardware.devices, *hardware.hidden_devices)
        through_smi = any("nvidia-smi" in device.sources.values() for device in devices)
        smi = ok("nvml.answers", "nvidia-smi answers; the package `nvidia-ml-py` is not used", "nvidia-smi")
        yield smi if through_smi else ok("nvml.answers", "NVML answers", "nvml")
    elif "version mismatch" not in error.lower() and "legacy" not in error.lower():
        case, severity, why, remedies = _case(hardware, error)
        what = _what(hardware, case, error)
        yield Finding(f"nvml.{case}", severity, what, why, ("nvml",), device_ids(hardware.devices), remedies)


def _what(hardware: Hardware, case: str, error: str) -> str:
    if case == "capability":
        capabilities = hardware.environment["NVIDIA_DRIVER_CAPABILITIES"]
        return f"NVML is not in this container: NVIDIA_DRIVER_CAPABILITIES=`{capabilities}` lacks `utility`"
    from_cuda = "; the facts about the GPUs come from CUDA" if hardware.devices else ""
    return f"NVML does not answer ({error}){from_cuda}"


def _case(hardware: Hardware, error: str) -> tuple[str, Severity, str, tuple[Remedy, ...]]:
    """Case, severity, consequence and remedies. Without devices `gpu` or `driver` reports the failure."""
    lower, container = error.lower(), hardware.host.container
    severity = Severity.WARNING if hardware.devices else Severity.OK
    capabilities = hardware.environment.get("NVIDIA_DRIVER_CAPABILITIES", "all").replace(" ", "").split(",")
    if any(device.compute_capability in INTEGRATED for device in hardware.devices):
        return "integrated", Severity.OK, "an integrated card (Jetson) has little or no NVML", ()
    if "not installed" in lower and "nvidia-ml-py" in lower:
        install = pip_install(hardware, "install NVIDIA's Python package for NVML", "nvidia-ml-py")
        return "not_installed", Severity.NOTE, UNKNOWN, (install,)
    if hardware.host.wsl:
        why = f"under WSL the driver belongs to Windows; {UNKNOWN}"
        update = Remedy("update the NVIDIA driver in Windows, then run `wsl --shutdown` there", Step.DRIVER)
        library = shell("make the loader find the Windows library", WSL_LIBRARY_PATH)
        return "under_wsl", Severity.WARNING, why, (library, update)
    if "permission" in lower:
        look = shell("see who may read the driver's files", "ls -l /dev/nvidia*", "id")
        return "not_permitted", severity, f"this user has no permission to query the driver; {UNKNOWN}", (look,)
    if container and "utility" not in capabilities and "all" not in capabilities:
        start = Remedy(
            "start the container with the `utility` capability of the driver",
            Step.CONTAINER,
            ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",),
            Certainty.PLACEHOLDER,
        )
        return "capability", Severity.WARNING, f"the container does not contain the library; {UNKNOWN}", (start,)
    if "unknown error" in lower and container:
        return "container_lost", severity or Severity.FAILURE, CGROUP, _cgroup_remedies()
    return "silent", severity, UNKNOWN, (shell("see the driver's own message", "nvidia-smi"),)


def _cgroup_remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "restart the container with the device files named explicitly",
            Step.CONTAINER,
            ("docker run --gpus all --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm IMAGE",),
            Certainty.PLACEHOLDER,
        ),
        Remedy(
            'to prevent it, set `"exec-opts": ["native.cgroupdriver=cgroupfs"]` in /etc/docker/daemon.json on the host '
            "and restart Docker",
            Step.CONTAINER,
        ),
    )
