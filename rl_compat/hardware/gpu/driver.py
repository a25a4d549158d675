"""The GPUs and their driver from the best available source, and what the operating system shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rl_compat.hardware.gpu.driver_library import LIBRARY_PLACES, DriverLibrary
from rl_compat.hardware.gpu.kernel_view import find_cuda_library, library_version, read_device_nodes
from rl_compat.hardware.gpu.nvidia_smi import read_smi
from rl_compat.hardware.gpu.nvml import KERNEL_MODULE_FILE, LIBRARY_NOT_FOUND, NOT_INSTALLED, read_nvml, unanswered
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
    file = root / "proc/driver/nvidia/version"
    reading = ask_in_time(library, timeout_seconds=timeout_seconds, kernel_module_file=file)
    if reading.driver.nvml_error in (NOT_INSTALLED, LIBRARY_NOT_FOUND):
        reading = read_without_packages(
            programs=programs, libraries=libraries, timeout_seconds=timeout_seconds, kernel_module_file=file
        )
    nodes, closed = read_device_nodes(root)
    cuda_library = find_cuda_library(environment, root)
    of_library = library_version(cuda_library)
    silent = reading.driver.nvml_error is not None
    driver = replace(
        reading.driver,
        version=(of_library if silent else None) or reading.driver.version,
        device_nodes=nodes,
        closed_device_nodes=closed,
        cuda_library=cuda_library,
        cuda_library_version=of_library,
    )
    return replace(reading, driver=driver)


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
            return unanswered(str(error), kernel_module_file)
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
    return found or unanswered(failure or LIBRARY_NOT_FOUND, kernel_module_file)


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
        return unanswered(f"NVML gave {no_answer(timeout_seconds)}", kernel_module_file)
