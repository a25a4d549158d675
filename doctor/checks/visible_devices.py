"""What CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say, entry by entry, and whether CUDA understands it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import names
from rl_compat.hardware.gpu.matching import cuda_order
from rl_compat.hardware.gpu.readings import NvmlDevice
from rl_compat.hardware.gpu.visible import Candidate, Picked, resolve_entry
from rl_compat.hardware.types import Device, Hardware

VARIABLE = "CUDA_VISIBLE_DEVICES"
ON_PURPOSE = ("", "nodevfiles", "none", "void")
ORDERS = ("FASTEST_FIRST", "PCI_BUS_ID")
INDEX = re.compile(r"[+-]?[0-9]+")


def check_visible_devices(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when neither variable is set."""
    if hardware.emulated is not None:
        return
    value, order = hardware.environment.get(VARIABLE), hardware.environment.get("CUDA_DEVICE_ORDER")
    if order is not None and order not in ORDERS:
        yield _unknown_order(order)
    if value is None or not (hardware.devices or hardware.hidden_devices or _torch_wants_cuda(hardware)):
        return
    entries = [entry.strip() for entry in value.split(",")]
    if means_no_gpu(value):
        yield _on_purpose(hardware, value)
    elif hardware.driver.nvml_error is None and (hardware.devices or hardware.hidden_devices):
        found = list(_entries(hardware, value, entries))
        yield from found or [_understood(hardware, value)]
    elif len(entries) > len(hardware.devices):
        yield _fewer(hardware, value, len(entries))
    else:
        yield _understood(hardware, value)
    if _counts_in_two_ways(hardware, entries):
        yield _order_is_open(value)


def means_no_gpu(value: str) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES hides every GPU and is meant to: empty, `-1`, `NoDevFiles`, `none`."""
    first = value.partition(",")[0].strip()
    return first.lower() in ON_PURPOSE or re.match(r"-[0-9]", first) is not None


def _entries(hardware: Hardware, value: str, entries: list[str]) -> Iterator[Finding]:
    """What is wrong with the entries: what CUDA stops at, or reads otherwise than it is meant."""
    gpus = _unrestricted(hardware)
    candidates = [_candidate(device) for device in gpus]
    picked: list[Picked] = []
    for entry in entries:
        match = resolve_entry(candidates, entry)
        if isinstance(match, str):
            ends_on_purpose = entry.startswith("-") or (
                not entry and entries[-1] == "" and len(picked) == len(entries) - 1
            )
            if len(hardware.devices) <= len(picked) and not ends_on_purpose:
                yield _dead_entry(hardware, value, entry, match, len(gpus))
            return
        if match in picked:
            yield _repeated(hardware, value, entry, gpus[match.position])
            return
        if INDEX.match(entry) and not INDEX.fullmatch(entry):
            yield _half_read(hardware, value, entry, gpus[match.position])
        picked.append(match)
    if any(gpus[match.position].mig_slices or match.slice_position is not None for match in picked) and len(picked) > 1:
        yield _beside_a_slice(hardware, value, len(picked))


def _unrestricted(hardware: Hardware) -> list[Device]:
    """Every GPU in CUDA's own order, as far as it can be known."""
    devices = [*hardware.devices, *hardware.hidden_devices]
    readings = [
        NvmlDevice(index=position, name=gpu.name, pci_bus_id=gpu.pci_bus_id, memory_total_bytes=gpu.memory_total_bytes)
        for position, gpu in enumerate(devices)
    ]
    return [devices[reading.index] for reading in cuda_order(readings, hardware.environment)[0]]


def _candidate(device: Device) -> Candidate:
    if device.mig_profile and device.uuid:
        return Candidate(slices=(device.uuid,), mig_enabled=True)
    return Candidate(uuid=device.uuid, mig_enabled=device.mig_slices is not None)


def _understood(hardware: Hardware, value: str) -> Finding:
    shown = ", ".join(f"cuda:{device.index} {device.name}" for device in hardware.devices)
    return Finding(
        id="visible_devices.understood",
        severity=Severity.OK,
        what=f"{VARIABLE}=`{value}` leaves {shown or 'what it names'}",
        where=(VARIABLE,),
    )


def _on_purpose(hardware: Hardware, value: str) -> Finding:
    return Finding(
        id="visible_devices.none",
        severity=Severity.OK,
        what=f"{VARIABLE}=`{value}` means no GPU",
        why="training runs on the CPU",
        where=(VARIABLE,),
        remedies=(unset(VARIABLE),),
    )


def _dead_entry(hardware: Hardware, value: str, entry: str, reason: str, num_gpus: int) -> Finding:
    """An entry that names nothing; CUDA ignores it and all that follow."""
    case = "unmatched"
    if INDEX.match(entry):
        case = "out_of_range"
        reason = (
            f"is not among the {num_gpus} GPUs, which are numbered from 0"
            if num_gpus > 1
            else "is not `0`, the only GPU"
        )
    elif entry.upper().startswith("MIG-"):
        case, reason = "slice_gone", "names no MIG slice of this machine: slices get new names when they are made anew"
    elif entry.upper().startswith("GPU-"):
        case = "ambiguous" if "several" in reason else "uuid_gone"
    elif not entry:
        case, reason = "empty_entry", "is empty"
    return _finding(
        hardware,
        case,
        f"{VARIABLE}=`{value}`: `{entry}` {reason}",
        "CUDA ends the list at the first entry that it cannot place, without a word",
        _better(hardware, value),
    )


def _repeated(hardware: Hardware, value: str, entry: str, device: Device) -> Finding:
    what = f"{VARIABLE}=`{value}` names `{device.name}` twice, the second time as `{entry}`"
    return _finding(hardware, "repeated", what, "CUDA shows no device at all then", _better(hardware, value))


def _half_read(hardware: Hardware, value: str, entry: str, device: Device) -> Finding:
    number = INDEX.match(entry)
    what = f"{VARIABLE}=`{value}`: of `{entry}` CUDA reads `{number.group() if number else ''}` alone, `{device.name}`"
    why = "entries are separated by commas; there are no ranges"
    return _finding(hardware, "half_read", what, why, _better(hardware, value))


def _beside_a_slice(hardware: Hardware, value: str, count: int) -> Finding:
    what = f"{VARIABLE}=`{value}` names {count} devices with a MIG slice among them"
    why = "a process sees one MIG slice and nothing beside it: start one process for each slice"
    first = hardware.devices[0].uuid if hardware.devices else None
    only = shell("name one slice", f"export {VARIABLE}={first}") if first else shell("see their names", "nvidia-smi -L")
    return _finding(hardware, "beside_a_slice", what, why, only)


def _fewer(hardware: Hardware, value: str, num_entries: int) -> Finding:
    shown = names(hardware.devices) or "none"
    return _finding(
        hardware,
        "fewer",
        f"{VARIABLE}=`{value}` has {num_entries} entries and CUDA shows {len(hardware.devices)} of them: {shown}",
        "an entry names nothing; CUDA ends the list there, without a word",
        unset(VARIABLE),
    )


def _finding(hardware: Hardware, case: str, what: str, why: str, *remedies: Remedy) -> Finding:
    return Finding(
        id=f"visible_devices.{case}",
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        what=what,
        why=why,
        where=(VARIABLE, "nvml"),
        affects=tuple(f"cuda:{device.index}" for device in hardware.devices) or ("training",),
        remedies=(*remedies, unset(VARIABLE)) if unset(VARIABLE) not in remedies else remedies,
    )


def _better(hardware: Hardware, value: str) -> Remedy:
    """The numbers in the value that exist, written as CUDA reads them."""
    count = len(hardware.devices) + len(hardware.hidden_devices)
    meant: list[int] = []
    if not re.search(r"GPU-|MIG-", value, re.IGNORECASE):
        for first, last in re.findall(r"([0-9]+)(?:\s*(?:-|\.\.)\s*([0-9]+))?", value):
            meant += range(int(first), min(int(last or first), count) + 1)
    numbers = [str(number) for number in dict.fromkeys(meant) if number < count]
    if not numbers:
        return unset(VARIABLE)
    return shell("name the GPUs by number, separated by commas", f"export {VARIABLE}={','.join(numbers)}")


def _unknown_order(order: str) -> Finding:
    return Finding(
        id="visible_devices.unknown_order",
        severity=Severity.WARNING,
        what=f"CUDA_DEVICE_ORDER=`{order}` is neither `PCI_BUS_ID` nor `FASTEST_FIRST`",
        why="CUDA ignores it and numbers the fastest card first",
        where=("CUDA_DEVICE_ORDER",),
        remedies=(shell("number as nvidia-smi does", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),),
    )


def _counts_in_two_ways(hardware: Hardware, entries: list[str]) -> bool:
    """Whether a number may be another card in nvidia-smi and nobody can say; `device_order` tells what is known."""
    different = {device.name for device in (*hardware.devices, *hardware.hidden_devices)}
    by_number = any(INDEX.fullmatch(entry) and not entry.startswith("-") for entry in entries)
    guessed = any(device.nvml_index is None or device.sources.get("name") != "cuda" for device in hardware.devices)
    ordered = hardware.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return len(different) > 1 and by_number and guessed and not ordered


def _order_is_open(value: str) -> Finding:
    return Finding(
        id="visible_devices.order_open",
        severity=Severity.NOTE,
        what=f"{VARIABLE}=`{value}` counts different cards by speed, since CUDA_DEVICE_ORDER is not set",
        why="nvidia-smi counts them by their place on the bus: the same number can be another card there",
        where=(VARIABLE, "CUDA_DEVICE_ORDER"),
        remedies=(shell("number as nvidia-smi does", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),),
    )


def _torch_wants_cuda(hardware: Hardware) -> bool:
    torch = hardware.software.torch
    return torch is not None and torch.cuda is not None


CHECKS: tuple[Check, ...] = (
    Check(
        id="visible_devices",
        question="does CUDA understand CUDA_VISIBLE_DEVICES?",
        run=check_visible_devices,
    ),
)
