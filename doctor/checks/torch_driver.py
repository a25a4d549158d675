"""Does the driver run the CUDA that torch was built for, and if CUDA stays silent all the same, why?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.checks.compute_mode import keeps_out
from rl_compat.doctor.checks.cuda_answers import answer_of
from rl_compat.doctor.findings import Finding, Remedy, Severity
from rl_compat.doctor.remedies import torch_remedies, update_driver
from rl_compat.doctor.tables.target import known_driver, newest_cuda, suitable_torch
from rl_compat.doctor.tables.torch import needed_driver
from rl_compat.doctor.tables.wheels import NoTorchBuildError
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Hardware, TorchBuild


def look_at_the_driver(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for a build without CUDA, without any driver, for an emulated card, or where the driver's own check says
    why CUDA cannot answer: a module of another version than its libraries, or a compute mode that keeps programs out.
    """
    torch = hardware.software.torch
    if torch is None or torch.cuda is None or hardware.emulated is not None or _explained(hardware, torch):
        return
    found = newest_cuda(hardware)
    if found is None and known_driver(hardware) is None:
        if not torch.cuda_available and hardware.devices:
            yield answer_of(hardware, torch)
        return
    if torch.cuda_available:
        yield from _answers(hardware, torch, found)
    elif driver_fits(hardware, torch) is False:
        yield _too_old(hardware, torch, found)
    elif hardware.devices:
        yield answer_of(hardware, torch)


def _explained(hardware: Hardware, torch: TorchBuild) -> bool:
    if "version mismatch" in (hardware.driver.nvml_error or "").lower():
        return True
    unread = re.match(r"cuda:(\d+): ", torch.cuda_error or "")
    silent = [device for device in hardware.devices if not unread or device.index == int(unread.group(1))]
    asked = unread is not None or not torch.cuda_available
    return asked and bool(silent) and all(keeps_out(device) for device in silent)


def driver_fits(hardware: Hardware, torch: TorchBuild) -> bool | None:
    """Whether the driver runs the finished code of a build for CUDA; None where the table does not know that CUDA."""
    assert torch.cuda is not None
    if re.search(r"driver on your system is too old", torch.cuda_error or ""):
        return False
    needed, driver = needed_driver(torch.cuda), known_driver(hardware)
    if needed is None or driver is None:
        return None
    return parse_version(driver) >= parse_version(needed)


def _answers(hardware: Hardware, torch: TorchBuild, found: str | None) -> Iterator[Finding]:
    error = torch.cuda_error
    unread = re.match(r"cuda:(\d+): ", error or "")
    if unread is not None:
        yield answer_of(hardware, torch)
        return
    assert torch.cuda is not None
    older = found is not None and parse_version(found) < parse_version(torch.cuda)
    needed = needed_driver(torch.cuda, full=True)
    yield Finding(
        id="torch_driver.works",
        severity=Severity.OK,
        what=f"CUDA answers: {_driver(hardware, found)}, torch {torch.version} is built for CUDA {torch.cuda}",
        why=f"finished code runs across CUDA {torch.cuda.partition('.')[0]}; code compiled during a run (NVRTC) needs "
        f"driver {needed or 'of that CUDA'}"
        if older
        else "",
        where=("torch", "driver"),
    )


def _too_old(hardware: Hardware, torch: TorchBuild, found: str | None) -> Finding:
    """The two ways out: a newer driver, or a torch built for an older CUDA."""
    assert torch.cuda is not None
    major = torch.cuda.partition(".")[0]
    needed = needed_driver(torch.cuda)
    newer = (update_driver(hardware, needed),) if needed else ()
    return Finding(
        id="torch_driver.too_old",
        severity=Severity.FAILURE,
        what=f"{_driver(hardware, found)}, torch {torch.version} needs CUDA {major}.x"
        + (f" and with it driver {needed} or newer" if needed else ""),
        why="torch says that there is no GPU, although there is one",
        where=("driver", "torch"),
        affects=tuple(f"cuda:{device.index}" for device in hardware.devices),
        remedies=(*_older_torch(hardware), *newer),
    )


def _older_torch(hardware: Hardware) -> tuple[Remedy, ...]:
    try:
        suitable_torch(hardware)
    except NoTorchBuildError:
        return ()
    return torch_remedies(hardware)


def _driver(hardware: Hardware, found: str | None) -> str:
    version = f"driver {hardware.driver.version}" if hardware.driver.version else "the driver"
    return f"{version} supports up to CUDA {found}" if found else f"{version} is there"
