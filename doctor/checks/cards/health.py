"""Cards that are failing: lost, silent, with errors of their memory, or with errors in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, remedy
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import names
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Device, Hardware, MemoryHealth

LOST = re.compile(r"GPU is lost|fall(?:en|s)? off the bus|fell off the bus|unable to determine the device handle", re.I)
HUNG = re.compile(r"no answer within|timed out|did not answer", re.I)
UNREADABLE = re.compile(r"NVML cannot read GPU (\d+)")
MANY_RETIRED = 60
"retired pages from which NVIDIA replaces a card"


def check_card_health(hardware: Hardware) -> Iterator[Finding]:
    """Cards that stopped answering, and listed cards with errors; `torch_driver` reports the errors of CUDA."""
    yield from _unanswering(hardware)
    for device in hardware.devices:
        yield from _memory(hardware, device)
        yield from _logged(hardware, device)


def _unanswering(hardware: Hardware) -> Iterator[Finding]:
    """At most one finding: the driver lost a card, hangs, or cannot read a card."""
    torch = hardware.software.torch
    errors = [hardware.driver.nvml_error, *(text for text in hardware.warnings if text.startswith("NVML"))]
    if torch and not hardware.devices:
        errors.append(torch.cuda_error)
    severity = Severity.WARNING if hardware.devices and torch and torch.cuda_available else Severity.FAILURE
    cases = (
        ("lost", LOST, "the driver lost a card"),
        ("hung", HUNG, "the driver does not answer"),
        ("unreadable", UNREADABLE, "the driver lists a card that does not answer"),
    )
    for case, pattern, what in cases:
        error = next((text for text in errors if text and pattern.search(text)), None)
        if error is not None:
            remedies = (remedy("read_xid"), remedy(f"restart_{case}"))
            yield finding(f"gpu.{case}", f"{what}: {error}", *remedies, severity=severity)
            return


def _memory(hardware: Hardware, device: Device) -> Iterator[Finding]:
    """Uncorrected ECC errors, retired pages and unfinished repairs, in one finding."""
    health = device.memory_health or MemoryHealth()
    facts = {
        f"{health.uncorrected_errors} uncorrected memory errors since the driver was loaded": health.uncorrected_errors,
        f"{health.retired_pages} retired pages or rows of memory": health.retired_pages,
        "a repair of its memory that waits for a reset": health.repair_pending,
        "a repair of its memory that failed, without spare rows left": health.repair_failed,
    }
    wrong = [text for text, value in facts.items() if value]
    if wrong:
        bad = _has_bad_memory(device)
        yield finding(
            "gpu.memory_errors",
            f"cuda:{device.index} `{device.name}` has {' and '.join(wrong)}",
            *(_avoid(hardware, device, "replace_card" if _is_worn(health) else "reset_card") if bad else ()),
            severity=Severity.WARNING if bad else Severity.NOTE,
            affects=(f"cuda:{device.index}", "training"),
        )


def _has_bad_memory(device: Device) -> bool:
    health = device.memory_health
    return health is not None and (bool(health.uncorrected_errors) or health.repair_pending or _is_worn(health))


def _is_worn(health: MemoryHealth) -> bool:
    return health.repair_failed or (health.retired_pages or 0) >= MANY_RETIRED


def _logged(hardware: Hardware, device: Device) -> Iterator[Finding]:
    logged = _xids(hardware, device)
    if logged:
        listed = ", ".join(f"Xid {number} ({meaning})" for number, meaning in logged.items())
        yield finding(
            "gpu.xid",
            f"the kernel log has errors of cuda:{device.index} `{device.name}`: {listed}",
            *_avoid(hardware, device, "reset_card"),
            affects=(f"cuda:{device.index}", "training"),
        )


def _xids(hardware: Hardware, device: Device) -> dict[int, str]:
    """Logged errors of a card itself, with their meaning; those of a program, such as 13 and 31, are left out."""
    meanings = {row["number"]: row["what"] for row in read_table("drivers")["xids"]}
    place = (device.pci_bus_id or "").lower().partition(".")[0]
    return {
        xid.number: meanings[xid.number]
        for xid in hardware.driver.xids or ()
        if xid.number in meanings and place.endswith(xid.bus_id.lower().partition(".")[0])
    }


def _avoid(hardware: Hardware, failing: Device, repair: str) -> Iterator[Remedy]:
    """Use the cards without errors, if there are any; then repair this one."""
    healthy = [gpu for gpu in hardware.devices if not _has_bad_memory(gpu) and not _xids(hardware, gpu)]
    uuids = [gpu.uuid for gpu in healthy if gpu.uuid]
    if uuids and len(uuids) == len(healthy):
        yield shell(f"use only {names(healthy)}", f"export CUDA_VISIBLE_DEVICES={','.join(uuids)}")
    yield remedy(repair, card=failing.uuid or failing.nvml_index or failing.index)
