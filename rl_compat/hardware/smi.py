"""Cards and driver without any package installed: from nvidia-smi, or from the driver's library through ctypes."""

from __future__ import annotations

import csv
import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_compat.hardware.catalogue import capability_of, find_gpu
from rl_compat.hardware.visible import Candidate, select_visible

QUERY = ("name", "compute_cap", "driver_version", "uuid")
SMI_PLACES = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
LIBRARY_PLACES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    name: str
    compute_capability: tuple[int, int]
    uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The cards a CUDA program would see, and the driver."""

    cards: tuple[Card, ...] = ()
    driver_version: str | None = None
    source: str | None = None
    "`nvidia-smi`, `nvml` or None"
    notes: tuple[str, ...] = ()


def detect(environment: Mapping[str, str] | None = None) -> Detected:
    """Ask nvidia-smi, then the driver's library; no card when neither answers."""
    variables = os.environ if environment is None else environment
    notes: list[str] = []
    for program in SMI_PLACES:
        try:
            return only_visible(parse_smi(_run_smi(program)), variables)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            notes.append(f"{program}: {_one_line(error)}")
    for library in LIBRARY_PLACES:
        try:
            return only_visible(_ask_library(library), variables)
        except (OSError, ValueError) as error:
            notes.append(f"{library}: {_one_line(error)}")
    return Detected(notes=tuple(notes))


def parse_smi(text: str) -> Detected:
    """The lines of `--query-gpu=name,compute_cap,driver_version,uuid --format=csv,noheader`.

    A driver older than R510 does not know `compute_cap`: an empty field is looked up by name. Raises ValueError when
    the text is no such table.
    """
    cards: list[Card] = []
    notes: list[str] = []
    driver = None
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(QUERY):
            raise ValueError(f"unexpected line `{', '.join(row)}`")
        name, capability, driver, uuid = (field.strip() for field in row)
        card = _card(name, capability, uuid)
        if card is None:
            notes.append(f"`{name}` is not in the catalogue and its compute capability is not known: left out")
        else:
            cards.append(card)
    return Detected(cards=tuple(cards), driver_version=driver, source="nvidia-smi", notes=tuple(notes))


def only_visible(found: Detected, environment: Mapping[str, str]) -> Detected:
    """The cards that CUDA_VISIBLE_DEVICES leaves. Numbers count in CUDA's order, which is guessed as fastest first."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return found
    cards = list(found.cards)
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        cards.sort(key=_speed, reverse=True)
    selection = select_visible([Candidate(uuid=card.uuid) for card in cards], _without_slices(value))
    return Detected(
        cards=tuple(cards[choice.position] for choice in selection.picked) or _all_of_a_slice(value, cards),
        driver_version=found.driver_version,
        source=found.source,
        notes=(*found.notes, *selection.warnings),
    )


def _without_slices(value: str) -> str:
    return "" if value.strip().startswith("MIG-") else value


def _all_of_a_slice(value: str, cards: Sequence[Card]) -> tuple[Card, ...]:
    """A MIG slice has its parent's capability; which parent is not known here, so all cards count."""
    return tuple(cards) if value.strip().startswith("MIG-") else ()


def _speed(card: Card) -> float:
    gpu = find_gpu(card.name)
    return (gpu.fp32_tflops if gpu else None) or 0.0


def _card(name: str, capability: str, uuid: str) -> Card | None:
    if capability.replace(".", "", 1).isdigit() and "." in capability:
        return Card(name=name, compute_capability=capability_of(capability), uuid=uuid or None)
    gpu = find_gpu(name)
    return Card(name=name, compute_capability=gpu.compute_capability, uuid=uuid or None) if gpu else None


def _run_smi(program: str) -> str:
    try:
        return _query(program, QUERY)
    except subprocess.CalledProcessError as error:
        if "compute_cap" not in f"{error.stdout}{error.stderr}":
            raise ValueError(f"{error.stdout} {error.stderr}") from None
    without = _query(program, tuple(field for field in QUERY if field != "compute_cap"))
    return "\n".join(",".join((name, "", *rest)) for name, *rest in csv.reader(without.splitlines()))


def _query(program: str, fields: Sequence[str]) -> str:
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _ask_library(path: str) -> Detected:
    """The same facts from the driver's own library. OSError when it is missing, ValueError when it refuses."""
    nvml = ctypes.CDLL(path)
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        count = ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
        cards = tuple(_ask_card(nvml, index) for index in range(count.value))
        driver = ctypes.create_string_buffer(96)
        _check(nvml.nvmlSystemGetDriverVersion(driver, len(driver)), "nvmlSystemGetDriverVersion")
        return Detected(cards=cards, driver_version=driver.value.decode(), source="nvml")
    finally:
        nvml.nvmlShutdown()


def _ask_card(nvml: ctypes.CDLL, index: int) -> Card:
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex")
    _check(nvml.nvmlDeviceGetName(handle, name, len(name)), "nvmlDeviceGetName")
    _check(nvml.nvmlDeviceGetUUID(handle, uuid, len(uuid)), "nvmlDeviceGetUUID")
    capability = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(capability, "nvmlDeviceGetCudaComputeCapability")
    return Card(
        name=name.value.decode(), compute_capability=(major.value, minor.value), uuid=uuid.value.decode() or None
    )


def _check(code: int, function: str) -> None:
    if code != 0:
        raise ValueError(f"{function} answered {code}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
