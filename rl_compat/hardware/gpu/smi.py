"""Cards and driver without installed packages: from nvidia-smi, or from the driver's library through ctypes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_compat.hardware.gpu.catalogue import find_gpu
from rl_compat.hardware.gpu.driver_library import LIBRARY_PLACES, DriverLibrary
from rl_compat.hardware.gpu.nvidia_smi import read_smi
from rl_compat.hardware.gpu.nvml import KERNEL_MODULE_FILE, LIBRARY_NOT_FOUND, kernel_module, read_nvml
from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlReading
from rl_compat.hardware.gpu.visible import Candidate, select_visible
from rl_compat.hardware.system.timeouts import Background, no_answer
from rl_compat.hardware.types import Driver

SMI_PLACES = (
    "nvidia-smi",
    "/usr/bin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/usr/local/nvidia/bin/nvidia-smi",
)
TIMEOUT_SECONDS = 10.0


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
    """Query nvidia-smi, then the driver's library. No cards if neither answers."""
    variables = os.environ if environment is None else environment
    reading = read_without_packages()
    if reading.driver.nvml_error is not None:
        return Detected(notes=(reading.driver.nvml_error,))
    return only_visible(reading, variables)


def read_without_packages(
    *,
    programs: Sequence[str] = SMI_PLACES,
    libraries: Sequence[str] = LIBRARY_PLACES,
    timeout_seconds: float = TIMEOUT_SECONDS,
    kernel_module_file: Path = KERNEL_MODULE_FILE,
) -> NvmlReading:
    """The driver's view from the first nvidia-smi that answers, then from the first library that loads.

    nvidia-smi does not list MIG slices, so these come from the library. After a hang nothing else is queried, since
    every program that talks to the driver would hang. A failure is recorded in `driver.nvml_error`.
    """
    failure = None
    for program in programs:
        try:
            reading = read_smi(program, timeout_seconds=timeout_seconds, kernel_module_file=kernel_module_file)
        except FileNotFoundError:
            continue
        except TimeoutError as error:
            return _failed(str(error), kernel_module_file)
        except ValueError as error:
            failure = failure or str(error)
            continue
        except OSError as error:
            failure = failure or f"`{program}` cannot be run: {error.strerror}"
            continue
        if any(gpu.mig_enabled for gpu in reading.devices):
            whole = _from_library(libraries, timeout_seconds, kernel_module_file)
            return reading if whole is None or whole.driver.nvml_error else whole
        return reading
    found = _from_library(libraries, timeout_seconds, kernel_module_file)
    return found or _failed(failure or LIBRARY_NOT_FOUND, kernel_module_file)


def _from_library(libraries: Sequence[str], timeout_seconds: float, kernel_module_file: Path) -> NvmlReading | None:
    """The reading of the first library that loads; None without one."""
    for path in libraries:
        try:
            library = DriverLibrary(path)
        except OSError:
            continue
        return ask_in_time(library, timeout_seconds=timeout_seconds, kernel_module_file=kernel_module_file)
    return None


def ask_in_time(
    library: object | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    kernel_module_file: Path = KERNEL_MODULE_FILE,
) -> NvmlReading:
    """`read_nvml` with a timeout, for drivers that hang."""
    try:
        asked = Background(lambda: read_nvml(library, kernel_module_file=kernel_module_file))
        return asked.result(timeout_seconds)
    except TimeoutError:
        return _failed(f"NVML gave {no_answer(timeout_seconds)}", kernel_module_file)


def _failed(error: str, kernel_module_file: Path) -> NvmlReading:
    version, flavour = kernel_module(kernel_module_file)
    return NvmlReading(driver=Driver(version=version, kernel_module=flavour, module_version=version, nvml_error=error))


def only_visible(found: NvmlReading, environment: Mapping[str, str]) -> Detected:
    """The cards that CUDA_VISIBLE_DEVICES leaves visible. Indices follow CUDA's order, assumed to be fastest first."""
    cards, notes = _cards(found.devices)
    everything = Detected(
        cards=tuple(cards),
        driver_version=found.driver.version,
        source=found.source,
        notes=(*found.warnings, *notes),
    )
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return everything
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        cards.sort(key=_speed, reverse=True)
    selection = select_visible([Candidate(uuid=card.uuid) for card in cards], _without_slices(value))
    return replace(
        everything,
        cards=tuple(cards[choice.position] for choice in selection.picked) or _all_of_a_slice(value, cards),
        notes=(*everything.notes, *selection.warnings),
    )


def _cards(devices: Sequence[NvmlDevice]) -> tuple[list[Card], list[str]]:
    """Cards whose capability the driver or the catalogue knows, and a warning for each of the others."""
    cards, notes = [], []
    for device in devices:
        known = find_gpu(device.name, device.memory_total_bytes)
        capability = device.compute_capability or (known.compute_capability if known else None)
        if capability is None:
            notes.append(f"`{device.name}` is not in the catalogue and its compute capability is not known: left out")
        else:
            cards.append(Card(name=device.name, compute_capability=capability, uuid=device.uuid))
    return cards, notes


def _without_slices(value: str) -> str:
    return "" if value.strip().startswith("MIG-") else value


def _all_of_a_slice(value: str, cards: Sequence[Card]) -> tuple[Card, ...]:
    """A MIG slice has the capability of its parent. The parent is unknown here, so all cards count."""
    return tuple(cards) if value.strip().startswith("MIG-") else ()


def _speed(card: Card) -> float:
    gpu = find_gpu(card.name)
    return (gpu.fp32_tflops if gpu else None) or 0.0
