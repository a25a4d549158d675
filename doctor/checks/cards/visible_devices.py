"""Whether CUDA understands CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, entry by entry."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.cards import device_ids, names
from rl_compat.hardware.gpu.cuda_view import Picked, cuda_order, resolve_entry, select_visible
from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlSlice
from rl_compat.hardware.types import Device, Hardware

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
NO_GPU = ("", "nodevfiles", "none", "void")
ORDERS = ("FASTEST_FIRST", "PCI_BUS_ID")
INDEX = re.compile(r"[+-]?[0-9]+")


def check_visible_devices(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if neither variable is set."""
    if hardware.emulated is not None:
        return
    value, order, torch = hardware.environment.get(VISIBLE), hardware.environment.get(ORDER), hardware.software.torch
    if order is not None and order not in ORDERS:
        yield finding(
            "visible_devices.unknown_order", f"{ORDER}=`{order}` is neither `PCI_BUS_ID` nor `FASTEST_FIRST`", _by_bus()
        )
    wants_cuda = torch is not None and torch.cuda is not None
    if value is None or not (hardware.devices or hardware.hidden_devices or wants_cuda):
        return
    entries = [entry.strip() for entry in value.split(",")]
    if means_no_gpu(value):
        yield finding("visible_devices.none", f"{VISIBLE}=`{value}` means no GPU", unset(VISIBLE))
    elif len(entries) > 1 and any(entry.upper().startswith("MIG-") for entry in entries):
        yield _several_with_a_slice(hardware, value, len(entries))
    elif hardware.driver.nvml_error is None and (hardware.devices or hardware.hidden_devices):
        found = list(_entries(hardware, value, entries))
        yield from found or [_understood(hardware, value)]
    elif len(entries) > len(hardware.devices):
        shown = names(hardware.devices) or "none"
        what = f"{VISIBLE}=`{value}` has {len(entries)} entries but CUDA shows {len(hardware.devices)}: {shown}"
        yield _finding(hardware, "fewer", what, unset(VISIBLE))
    else:
        yield _understood(hardware, value)
    if _is_ambiguous(hardware, entries):
        yield finding(
            "visible_devices.order_open",
            f"{VISIBLE}=`{value}` numbers different cards by speed, because {ORDER} is not set",
            _by_bus(),
        )


def means_no_gpu(value: str) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES hides every GPU on purpose: empty, `-1`, `NoDevFiles`, `none`."""
    first = value.partition(",")[0].strip()
    return first.lower() in NO_GPU or re.match(r"-[0-9]", first) is not None


def hides_every_gpu(hardware: Hardware) -> bool:
    value = hardware.environment.get(VISIBLE)
    return value is not None and means_no_gpu(value)


def _entries(hardware: Hardware, value: str, entries: list[str]) -> Iterator[Finding]:
    """What is wrong with the entries: where CUDA stops, or reads something else than what was meant."""
    gpus = every_gpu(hardware)
    listed = [_as_listed(device) for device in gpus]
    picked: list[Picked] = []
    for entry in entries:
        match = resolve_entry(listed, entry)
        if isinstance(match, str):
            is_trailing = not entry and entries[-1] == "" and len(picked) == len(entries) - 1
            if len(hardware.devices) <= len(picked) and not entry.startswith("-") and not is_trailing:
                yield _dead_entry(hardware, value, entry, match, len(gpus))
            return
        name = gpus[match.position].name
        if match in picked:
            what = f"{VISIBLE}=`{value}` names `{name}` twice, the second time as `{entry}`"
            yield _finding(hardware, "repeated", what, _better(hardware, value))
            return
        number = INDEX.match(entry)
        if number and not INDEX.fullmatch(entry):
            what = f"{VISIBLE}=`{value}`: CUDA reads only `{number.group()}` of `{entry}`, which is `{name}`"
            yield _finding(hardware, "half_read", what, _better(hardware, value))
        picked.append(match)
    if any(gpus[match.position].mig_slices or match.slice_position is not None for match in picked) and len(picked) > 1:
        yield _several_with_a_slice(hardware, value, len(picked))


def _several_with_a_slice(hardware: Hardware, value: str, count: int) -> Finding:
    what = f"{VISIBLE}=`{value}` names {count} devices, one of them a MIG slice"
    first = hardware.devices[0].uuid if hardware.devices else None
    only = shell("select one slice", f"export {VISIBLE}={first}") if first else shell("list them", "nvidia-smi -L")
    return _finding(hardware, "beside_a_slice", what, only)


def every_gpu(hardware: Hardware) -> list[Device]:
    """Every GPU in CUDA's own order, as far as it is known."""
    devices = [*hardware.devices, *hardware.hidden_devices]
    readings = [
        NvmlDevice(index=position, name=gpu.name, pci_bus_id=gpu.pci_bus_id, memory_total_bytes=gpu.memory_total_bytes)
        for position, gpu in enumerate(devices)
    ]
    return [devices[reading.index] for reading in cuda_order(readings, hardware.environment)[0]]


def selected(gpus: list[Device], value: str | None) -> list[int]:
    """The positions of the GPUs that a value of CUDA_VISIBLE_DEVICES shows; None is unset."""
    return [picked.position for picked in select_visible([_as_listed(gpu) for gpu in gpus], value).picked]


def _as_listed(device: Device) -> NvmlDevice:
    if device.mig_profile and device.uuid:
        return NvmlDevice(index=0, name=device.name, slices=(NvmlSlice(uuid=device.uuid),), mig_enabled=True)
    return NvmlDevice(index=0, name=device.name, uuid=device.uuid, mig_enabled=device.mig_slices is not None)


def _understood(hardware: Hardware, value: str) -> Finding:
    shown = ", ".join(f"cuda:{device.index} {device.name}" for device in hardware.devices)
    return ok("visible_devices.understood", f"{VISIBLE}=`{value}` leaves {shown or 'the devices it names'}", VISIBLE)


def _dead_entry(hardware: Hardware, value: str, entry: str, reason: str, num_gpus: int) -> Finding:
    """An entry that matches no device; CUDA ignores it and all entries after it."""
    case = "unmatched"
    if INDEX.match(entry):
        several = f"is not among the {num_gpus} GPUs, which are numbered from 0"
        case, reason = "out_of_range", several if num_gpus > 1 else "is not `0`, the only GPU"
    elif entry.upper().startswith("MIG-"):
        case, reason = "slice_gone", "matches no MIG slice of this machine: recreated slices get new names"
    elif entry.upper().startswith("GPU-"):
        case = "ambiguous" if "several" in reason else "uuid_gone"
    elif not entry:
        case, reason = "empty_entry", "is empty"
    what = f"{VISIBLE}=`{value}`: `{entry}` {reason}"
    return _finding(hardware, case, what, _better(hardware, value))


def _finding(hardware: Hardware, case: str, what: str, remedy: Remedy) -> Finding:
    return finding(
        f"visible_devices.{case}",
        what,
        *dict.fromkeys((remedy, unset(VISIBLE))),
        severity=Severity.WARNING if hardware.devices else Severity.FAILURE,
        affects=device_ids(hardware.devices) or ("training",),
    )


def _better(hardware: Hardware, value: str) -> Remedy:
    """The numbers in the value that exist, written the way CUDA reads them."""
    count = len(hardware.devices) + len(hardware.hidden_devices)
    meant: list[int] = []
    if not re.search(r"GPU-|MIG-", value, re.IGNORECASE):
        for first, last in re.findall(r"([0-9]+)(?:\s*(?:-|\.\.)\s*([0-9]+))?", value):
            meant += range(int(first), min(int(last or first), count) + 1)
    numbers = [str(number) for number in dict.fromkeys(meant) if number < count]
    if not numbers:
        return unset(VISIBLE)
    return shell("name the GPUs by number, separated by commas", f"export {VISIBLE}={','.join(numbers)}")


def _is_ambiguous(hardware: Hardware, entries: list[str]) -> bool:
    """Whether a number may mean another card in nvidia-smi and it is not known; `device_order` reports known cases."""
    different = {device.name for device in (*hardware.devices, *hardware.hidden_devices)}
    by_number = any(INDEX.fullmatch(entry) and not entry.startswith("-") for entry in entries)
    guessed = any(device.nvml_index is None or device.sources.get("name") != "cuda" for device in hardware.devices)
    return len(different) > 1 and by_number and guessed and hardware.environment.get(ORDER) != "PCI_BUS_ID"


def check_device_order(hardware: Hardware) -> Iterator[Finding]:
    """Nothing for a single card, or if the numbers of nvidia-smi are not known."""
    devices, value = hardware.devices, hardware.environment.get(VISIBLE)
    several = len(devices) + len(hardware.hidden_devices) > 1
    unknown = not devices or any(device.nvml_index is None for device in devices)
    if hardware.emulated is not None or not several or unknown:
        return
    other = _misnumbered(devices, value) if value is not None else None
    indexes = [device.nvml_index for device in devices if device.nvml_index is not None]
    if other is not None:
        number, device = other
        what = f"{VISIBLE}=`{value}`: {number} is `{device.name}` in CUDA, which nvidia-smi numbers {device.nvml_index}"
        by_name = shell(
            "select the card by UUID, which does not depend on the order", f"export {VISIBLE}={device.uuid}"
        )
        remedies = (_by_bus(), by_name) if device.uuid else (_by_bus(),)
        yield finding("device_order.another_card", what, *remedies, affects=(f"cuda:{device.index}", "training"))
    elif value is None and indexes != sorted(indexes):
        pairs = ", ".join(f"cuda:{gpu.index} `{gpu.name}` is {gpu.nvml_index} there" for gpu in devices)
        yield finding(
            "device_order.differs",
            f"nvidia-smi and CUDA number the cards differently: {pairs}",
            _by_bus(f"export {VISIBLE}={','.join(map(str, indexes))}"),
            affects=device_ids(devices),
        )
    else:
        pairs = ", ".join(f"cuda:{device.index} is {device.nvml_index} there" for device in devices)
        yield ok("device_order.agrees", f"CUDA and nvidia-smi agree on the cards: {pairs}", "cuda", "nvml")


def _misnumbered(devices: tuple[Device, ...], value: str) -> tuple[int, Device] | None:
    """The first number in CUDA_VISIBLE_DEVICES that means another card in nvidia-smi."""
    for entry, device in zip(value.split(","), devices, strict=False):
        number = entry.strip()
        if number.isdecimal() and int(number) != device.nvml_index:
            return int(number), device
    return None


def _by_bus(*commands: str) -> Remedy:
    kept = "; the cards keep their current places" if commands else ""
    return shell(f"make CUDA number the cards as nvidia-smi does{kept}", f"export {ORDER}=PCI_BUS_ID", *commands)
