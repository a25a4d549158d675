"""Cards whose compute mode keeps programs out."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import computing
from rl_compat.hardware.types import Device, Hardware

EXCLUSIVE = ("exclusive_process", "exclusive_thread")


def check_compute_mode(hardware: Hardware) -> Iterator[Finding]:
    """Cards whose compute mode keeps processes out, as far as they are visible to begin with."""
    for device in hardware.devices:
        others = [str(process.pid) for process in computing(device)]
        if device.compute_mode == "prohibited":
            yield prohibited(hardware, device, f"cuda:{device.index}", Severity.FAILURE)
        elif device.compute_mode in EXCLUSIVE and others:
            yield Finding(
                id="gpu.taken",
                severity=Severity.FAILURE,
                what=f"cuda:{device.index} `{device.name}` admits one process (compute mode `{device.compute_mode}`) "
                f"and process {', '.join(others)} holds it",
                why="the next program is refused with `CUDA-capable device(s) is/are busy or unavailable`",
                where=("nvml",),
                affects=(f"cuda:{device.index}", "training"),
                remedies=(_set_mode(hardware, device), _look_at(others)),
            )
        elif device.compute_mode in EXCLUSIVE:
            yield Finding(
                id="gpu.exclusive",
                severity=Severity.NOTE,
                what=f"cuda:{device.index} `{device.name}` admits one process (compute mode `{device.compute_mode}`)",
                why="training runs; a rollout engine or reward model in a second process cannot share the card",
                where=("nvml",),
                affects=(f"cuda:{device.index}", "rollout"),
                remedies=(_set_mode(hardware, device),),
            )


def keeps_out(device: Device) -> bool:
    """Whether the mode alone explains that a new program cannot use the card."""
    return device.compute_mode == "prohibited" or (device.compute_mode in EXCLUSIVE and bool(computing(device)))


def prohibited(hardware: Hardware, device: Device, where: str, severity: Severity) -> Finding:
    return Finding(
        id="gpu.prohibited",
        severity=severity,
        what=f"{where} `{device.name}` is in compute mode `prohibited`",
        why="the driver lets no CUDA program use the card",
        where=("nvml",),
        affects=("training",),
        remedies=(_set_mode(hardware, device),),
    )


def _set_mode(hardware: Hardware, device: Device) -> Remedy:
    index = device.nvml_index if device.nvml_index is not None else device.index
    if hardware.host.container:
        return Remedy(what="on the host, set the card's compute mode to `DEFAULT`", step=Step.SYSTEM)
    return Remedy(
        what="let every process use the card",
        step=Step.SYSTEM,
        commands=(f"sudo nvidia-smi -i {device.uuid or index} -c DEFAULT",),
    )


def _look_at(pids: list[str]) -> Remedy:
    return shell("see whose it is", f"ps -o pid,user,etime,args -p {','.join(pids)}")
