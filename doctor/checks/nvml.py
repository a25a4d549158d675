"""Whether NVML, the driver's own view of the cards, answers; training needs it for nothing, the doctor for much."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import WSL_LIBRARY_PATH, pip_install, shell
from rl_compat.doctor.tables.cards import all_cards
from rl_compat.hardware.gpu.binaries import TEGRA
from rl_compat.hardware.types import Hardware

INTEGRATED = TEGRA | {(11, 0)}
LOST = "what each process holds, and the order of nvidia-smi, are not known; training itself is not touched"


def check_nvml(hardware: Hardware) -> Iterator[Finding]:
    """Nothing without a card or a driver, or where the driver itself is at fault."""
    driver = hardware.driver
    if hardware.emulated is not None or not (all_cards(hardware) or driver.version):
        return
    error = driver.nvml_error
    if error is None:
        yield _answers(hardware)
    elif "version mismatch" not in error.lower() and "legacy" not in error.lower():
        case, severity, why, remedies = _case(hardware, error)
        yield Finding(
            id=f"nvml.{case}",
            severity=severity,
            what=_what(hardware, case, error),
            why=why,
            where=("nvml",),
            affects=tuple(f"cuda:{device.index}" for device in hardware.devices),
            remedies=remedies,
        )


def _answers(hardware: Hardware) -> Finding:
    devices = (*hardware.devices, *hardware.hidden_devices)
    through_smi = any("nvidia-smi" in device.sources.values() for device in devices)
    return Finding(
        id="nvml.answers",
        severity=Severity.OK,
        what="nvidia-smi answers, in place of the package `nvidia-ml-py`" if through_smi else "NVML answers",
        where=("nvidia-smi",) if through_smi else ("nvml",),
    )


def _what(hardware: Hardware, case: str, error: str) -> str:
    if case == "capability":
        asked = hardware.environment["NVIDIA_DRIVER_CAPABILITIES"]
        return f"NVML is not in this container: NVIDIA_DRIVER_CAPABILITIES=`{asked}` lacks `utility`"
    from_cuda = ": the facts of the GPUs come from CUDA" if hardware.devices else ""
    return f"NVML does not answer ({error}){from_cuda}"


def _case(hardware: Hardware, error: str) -> tuple[str, Severity, str, tuple[Remedy, ...]]:
    lower, container = error.lower(), hardware.host.container
    capabilities = hardware.environment.get("NVIDIA_DRIVER_CAPABILITIES", "all").replace(" ", "").split(",")
    if any(device.compute_capability in INTEGRATED for device in hardware.devices):
        return "integrated", Severity.OK, "an integrated card (Jetson) has little or no NVML", ()
    if "not installed" in lower and "nvidia-ml-py" in lower:
        install = Remedy(
            what="install NVIDIA's Python package for it",
            step=Step.PACKAGE,
            commands=(pip_install(hardware, "nvidia-ml-py"),),
        )
        return "not_installed", Severity.NOTE, LOST, (install,)
    if hardware.host.wsl:
        return "under_wsl", Severity.WARNING, f"under WSL the driver lives on the Windows side; {LOST}", _wsl_remedies()
    if "permission" in lower:
        look = shell("see who may read the driver's files", "ls -l /dev/nvidia*", "id")
        return "not_permitted", _severity(hardware), f"this user may not ask the driver; {LOST}", (look,)
    if container and "utility" not in capabilities and "all" not in capabilities:
        return "capability", Severity.WARNING, f"the library was left outside; {LOST}", (_with_utility(),)
    if "unknown error" in lower and container:
        return "container_lost", _severity(hardware, without=Severity.FAILURE), CGROUP, _cgroup_remedies()
    return "silent", _severity(hardware), LOST, (shell("see what it says itself", "nvidia-smi"),)


def _severity(hardware: Hardware, *, without: Severity = Severity.OK) -> Severity:
    """With CUDA at work a loss of comfort; without it the cards are out of reach, which `gpu` or `driver` explains."""
    return Severity.WARNING if hardware.devices else without


CGROUP = (
    "a container that ran well loses its cards when systemd on the host reloads (`systemctl daemon-reload`): "
    "the running process keeps them, the next one finds none"
)


def _wsl_remedies() -> tuple[Remedy, ...]:
    return (
        shell("show the loader the library of Windows", WSL_LIBRARY_PATH),
        Remedy(what="update the NVIDIA driver in Windows, then `wsl --shutdown` there", step=Step.DRIVER),
    )


def _with_utility() -> Remedy:
    return Remedy(
        what="start the container with the driver's tools as well",
        step=Step.CONTAINER,
        commands=("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",),
        sure=Sureness.PLACEHOLDER,
    )


def _cgroup_remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            what="start the container anew, with the device files named",
            step=Step.CONTAINER,
            commands=(
                "docker run --gpus all --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm IMAGE",
            ),
            sure=Sureness.PLACEHOLDER,
        ),
        Remedy(
            what='to be rid of it, set `"exec-opts": ["native.cgroupdriver=cgroupfs"]` in the host\'s '
            "/etc/docker/daemon.json and restart Docker",
            step=Step.CONTAINER,
        ),
    )


CHECKS: tuple[Check, ...] = (Check(id="nvml", question="does the driver's own interface answer?", run=check_nvml),)
