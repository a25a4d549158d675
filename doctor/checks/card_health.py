"""Cards that stopped answering."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Hardware

LOST = re.compile(r"GPU is lost|fall(?:en|s)? off the bus|fell off the bus|unable to determine the device handle", re.I)
HUNG = re.compile(r"no answer within|timed out|did not answer", re.I)


def check_card_health(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding. Of a card that NVML lists, what CUDA says of it is the business of `torch_driver`."""
    torch = hardware.software.torch
    said = [hardware.driver.nvml_error, *(text for text in hardware.warnings if text.startswith("NVML"))]
    if torch and not hardware.devices:
        said.append(torch.cuda_error)
    severity = Severity.WARNING if hardware.devices and torch and torch.cuda_available else Severity.FAILURE
    lost = next((text for text in said if text and LOST.search(text)), None)
    hung = next((text for text in said if text and HUNG.search(text)), None)
    log = shell("read the error number (Xid) that the driver wrote", "sudo dmesg | grep -iE 'xid|nvrm'")
    if lost is not None:
        yield Finding(
            id="gpu.lost",
            severity=severity,
            what=f"the driver lost a card: {lost}",
            why="power or heat mostly: Tesla P40, P100 and V100 have no fan and want the 8-pin cable of a processor; "
            "a riser comes next. It comes back with a restart only",
            where=("nvml",),
            affects=("training",),
            remedies=(log, Remedy(what="check cable, airflow and riser, then restart the machine", step=Step.SYSTEM)),
        )
    elif hung is not None:
        yield Finding(
            id="gpu.hung",
            severity=severity,
            what=f"the driver does not answer: {hung}",
            why="a card that hangs, or a program stuck in the driver, blocks everything that asks for CUDA",
            where=("nvml", "cuda"),
            affects=("training",),
            remedies=(log, Remedy(what="restart the machine; `nvidia-smi` hangs as well until then", step=Step.SYSTEM)),
        )
