"""The GPUs and their driver from the best available source, and what the operating system shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rl_compat.hardware.gpu.driver_library import LIBRARY_PLACES
from rl_compat.hardware.gpu.kernel_view import find_cuda_library, library_version, read_device_nodes
from rl_compat.hardware.gpu.nvml import LIBRARY_NOT_FOUND, NOT_INSTALLED
from rl_compat.hardware.gpu.readings import NvmlReading
from rl_compat.hardware.gpu.smi import SMI_PLACES, TIMEOUT_SECONDS, ask_in_time, read_without_packages


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
    unanswered = reading.driver.nvml_error is not None
    driver = replace(
        reading.driver,
        version=(of_library if unanswered else None) or reading.driver.version,
        device_nodes=nodes,
        closed_device_nodes=closed,
        cuda_library=cuda_library,
        cuda_library_version=of_library,
    )
    return replace(reading, driver=driver)
