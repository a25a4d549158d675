"""Ask the driver, CUDA and the host what this machine is. Never raises: what cannot be read becomes a warning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rl_compat.hardware.cuda import read_torch
from rl_compat.hardware.driver import read_driver
from rl_compat.hardware.environment import read_environment
from rl_compat.hardware.host import read_host
from rl_compat.hardware.join import join
from rl_compat.hardware.kernel_view import read_pci_gpus
from rl_compat.hardware.readings import NvmlReading, TorchReading
from rl_compat.hardware.software import read_software
from rl_compat.hardware.topology import join_links
from rl_compat.hardware.types import Driver, Endpoint, Hardware, Host, PciGpu, Software


def probe(
    *,
    environment: Mapping[str, str] | None = None,
    torch_timeout_seconds: float | None = 60.0,
    folder: Path | None = None,
) -> Hardware:
    """This machine as a process with that environment sees it (this one's when not given).

    torch is imported in a child process and given up on after `torch_timeout_seconds`; None leaves it alone, which
    takes a fraction of a second, and CUDA's facts are then worked out from NVML. `folder` is whose disk is measured.
    """
    variables = os.environ if environment is None else environment
    nvml = read_driver(variables)
    torch = (
        TorchReading(looked=False)
        if torch_timeout_seconds is None
        else read_torch(environment=variables, timeout_seconds=torch_timeout_seconds)
    )
    host = read_host(environment=variables, folder=folder)
    return assemble(
        nvml,
        torch,
        host,
        environment=variables,
        software=read_software(torch, environment=variables),
        pci_gpus=read_pci_gpus(),
    )


def assemble(
    nvml: NvmlReading,
    torch: TorchReading,
    host: Host,
    *,
    environment: Mapping[str, str],
    software: Software | None = None,
    pci_gpus: tuple[PciGpu, ...] | None = None,
    network: tuple[Endpoint, ...] | None = None,
) -> Hardware:
    """One description of the machine out of the sources' readings; this Python's software when none is given."""
    joined = join(nvml, torch, environment)
    return Hardware(
        devices=joined.devices,
        hidden_devices=joined.hidden,
        links=join_links(joined.devices, nvml.links, {}),
        pci_gpus=pci_gpus,
        driver=_driver(nvml, torch),
        host=host,
        software=software or read_software(torch, environment=environment),
        environment=read_environment(environment),
        network=network,
        warnings=(*nvml.warnings, *joined.warnings, *contradictions(nvml, torch, len(joined.devices))),
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def contradictions(nvml: NvmlReading, torch: TorchReading, num_devices: int) -> tuple[str, ...]:
    """What one source says of the `num_devices` visible GPUs and another does not."""
    warnings = []
    if torch.error:
        warnings.append(f"torch could not be looked at: {torch.error}")
    if torch.cuda_error:
        warnings.append(f"torch reports of CUDA: {torch.cuda_error}")
    if torch.devices and nvml.driver.nvml_error:
        warnings.append(f"NVML does not answer ({nvml.driver.nvml_error}): the facts of the GPUs come from CUDA alone")
    if num_devices and torch.build and not torch.devices:
        kind = f"built for CUDA {torch.build.cuda}" if torch.build.cuda else "a CPU build"
        warnings.append(f"the driver lists {num_devices} usable GPU(s), torch {torch.build.version} ({kind}) none")
    return tuple(warnings)


def _driver(nvml: NvmlReading, torch: TorchReading) -> Driver:
    """NVML's view; the CUDA version as torch asked it where NVML does not answer."""
    if nvml.driver.cuda_version is None and torch.driver_cuda_version is not None:
        return replace(nvml.driver, cuda_version=torch.driver_cuda_version)
    return nvml.driver
