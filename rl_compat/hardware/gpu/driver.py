"""The GPUs and their driver from the best available source, and what the operating system shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rl_compat.hardware.gpu.driver_library import LIBRARY_PLACES, DriverLibrary
from rl_compat.hardware.gpu.kernel_view import (
    find_cuda_library,
    library_version,
    read_device_nodes,
    read_kernel_module,
    read_xids,
)
from rl_compat.hardware.gpu.nvidia_smi import read_smi
from rl_compat.hardware.gpu.nvml import LIBRARY_NOT_FOUND, NOT_INSTALLED, read_nvml, unanswered
from rl_compat.hardware.gpu.readings import NvmlReading
from rl_compat.hardware.system.timeouts import Background, no_answer

SMI_PLACES = (
    "nvidia-smi",
    "/usr/bin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/usr/local/nvidia/bin/nvidia-smi",
)
TIMEOUT_SECONDS = 10.0


def read_driver(
    environment: Mapping[str, str],
    *,
    root: Path = Path("/"),
    library: object | None = None,
    programs: Sequence[str] = SMI_PLACES,
    libraries: Sequence[str] = LIBRARY_PLACES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> NvmlReading:
    """Reads through `nvidia-ml-py` (or `library`), or else through nvidia-smi or the driver's library.

    `root` is the folder of `/proc` and `/dev`. Each source times out after `timeout_seconds`. The version of a driver
    that does not answer comes from `libcuda.so.1`, or else from the kernel module.
    """
    reading = _ask_in_time(library, timeout_seconds)
    if reading.driver.nvml_error in (NOT_INSTALLED, LIBRARY_NOT_FOUND):
        reading = read_without_packages(programs=programs, libraries=libraries, timeout_seconds=timeout_seconds)
    nodes, closed = read_device_nodes(root)
    module_version, flavour = read_kernel_module(root)
    cuda_library = find_cuda_library(environment, root)
    of_library = library_version(cuda_library)
    answered = reading.driver.version if reading.driver.nvml_error is None else of_library
    driver = replace(
        reading.driver,
        version=answered or module_version,
        kernel_module=flavour,
        module_version=module_version,
        device_nodes=nodes,
        closed_device_nodes=closed,
        cuda_library=cuda_library,
        cuda_library_version=of_library,
        xids=read_xids(root),
    )
    return replace(reading, driver=driver)


def read_without_packages(
    *,
    programs: Sequence[str] = SMI_PLACES,
    libraries: Sequence[str] = LIBRARY_PLACES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> NvmlReading:
    """The driver's view from the first nvidia-smi that answers, then from the first library that loads.

    nvidia-smi does not list MIG slices, so these come from the library. After a hang nothing else is queried, since
    every program that talks to the driver would hang. A failure is recorded in `driver.nvml_error`.
    """
    failure = None
    for program in programs:
        try:
            reading = read_smi(program, timeout_seconds=timeout_seconds)
        except FileNotFoundError:
            continue
        except TimeoutError as error:
            return unanswered(str(error))
        except (ValueError, OSError) as error:
            said = f"`{program}` cannot be run: {error.strerror}" if isinstance(error, OSError) else str(error)
            failure = failure or said
            continue
        if any(gpu.mig_enabled for gpu in reading.devices):
            whole = _from_library(libraries, timeout_seconds)
            return reading if whole is None or whole.driver.nvml_error else whole
        return reading
    return _from_library(libraries, timeout_seconds) or unanswered(failure or LIBRARY_NOT_FOUND)


def _from_library(libraries: Sequence[str], timeout_seconds: float) -> NvmlReading | None:
    """The reading of the first library that loads; None without one."""
    for path in libraries:
        try:
            library = DriverLibrary(path)
        except OSError:
            continue
        return _ask_in_time(library, timeout_seconds)
    return None


def _ask_in_time(library: object | None, timeout_seconds: float) -> NvmlReading:
    """`read_nvml` with a timeout, for drivers that hang."""
    try:
        return Background(lambda: read_nvml(library)).result(timeout_seconds)
    except TimeoutError:
        return unanswered(f"NVML gave {no_answer(timeout_seconds)}")
