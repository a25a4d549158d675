"""Read the facts of this machine from the driver, CUDA and the host. Never raises: a failure becomes a warning."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rl_compat.hardware.gpu.driver import read_driver
from rl_compat.hardware.gpu.join import JoinedDevices, join, join_links, set_apart_other_vendors
from rl_compat.hardware.gpu.kernel_view import read_amd_gpus, read_pci_gpus
from rl_compat.hardware.gpu.readings import NvmlReading, TorchReading
from rl_compat.hardware.system.host import read_host
from rl_compat.hardware.system.network import read_network
from rl_compat.hardware.system.software import read_environment, read_software, with_torch
from rl_compat.hardware.system.timeouts import Background
from rl_compat.hardware.torch_reader import read_torch
from rl_compat.hardware.types import Endpoint, Hardware, Host, PciGpu, Software

T = TypeVar("T")

SLOW_DRIVER_SECONDS = 5.0
"how long to wait for the driver before torch starts"


def probe(
    *,
    environment: Mapping[str, str] | None = None,
    torch_timeout_seconds: float | None = 60.0,
    packages: bool = True,
    folder: Path | None = None,
    network_timeout_seconds: float | None = None,
) -> Hardware:
    """This machine as a process with the given environment sees it (by default this process's).

    torch is imported in a child process that times out after `torch_timeout_seconds`. None skips it, which takes a
    fraction of a second; CUDA's facts are then derived from NVML. With `packages`, all packages built on torch are
    imported, not only those that a plan may use. `folder` is where a run would be written. Servers are contacted only
    with `network_timeout_seconds`.
    """
    variables = os.environ if environment is None else environment
    failed: list[str] = []
    network = (
        None
        if network_timeout_seconds is None
        else Background(lambda: read_network(variables, timeout_seconds=network_timeout_seconds))
    )
    driver = Background(lambda: read_driver(variables))
    # The driver must not count the child's own use of the GPUs, so the child waits for it; but not for one that hangs.
    driver.ends_within(SLOW_DRIVER_SECONDS)
    child = (
        None
        if torch_timeout_seconds is None
        else Background(
            lambda: read_torch(environment=variables, timeout_seconds=torch_timeout_seconds, packages=packages)
        )
    )
    host = _attempt("the host", lambda: read_host(environment=variables, folder=folder), _unknown_host(), failed)
    pci_gpus = _attempt("the PCI bus", read_pci_gpus, None, failed)
    unknown = Software(python=platform.python_version(), executable=sys.executable or None)
    software = _attempt("the software", lambda: read_software(environment=variables), unknown, failed)
    nvml = _attempt("the driver", driver.result, NvmlReading(), failed)
    torch = TorchReading()
    if child is not None:
        torch = _attempt("torch", child.result, TorchReading(error="it could not be looked at"), failed)
    found = assemble(
        nvml,
        torch,
        host,
        environment=variables,
        software=with_torch(software, torch),
        pci_gpus=pci_gpus,
        network=None if network is None else _attempt("the network", network.result, None, failed),
    )
    amd: tuple[str, ...] = _attempt("AMD's GPUs", read_amd_gpus, (), failed)
    return replace(found, other_gpus=found.other_gpus or amd, warnings=(*found.warnings, *failed))


def _attempt(what: str, read: Callable[[], T], instead: T, failed: list[str]) -> T:
    """The reading; any exception becomes a warning."""
    try:
        return read()
    except Exception as error:
        failed.append(f"{what} could not be read: {type(error).__name__}: {error}")
        return instead


def _unknown_host() -> Host:
    return Host(
        platform=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        cpu_name=platform.machine(),
        num_cores=os.cpu_count() or 1,
        ram_total_bytes=0,
        ram_limit_bytes=0,
        ram_available_bytes=0,
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
    """The machine, joined from the readings of all sources; by default with the software of this Python."""
    failed: list[str] = []
    joined = _attempt("the list of devices", lambda: join(nvml, torch, environment), JoinedDevices(devices=()), failed)
    found = Hardware(
        devices=joined.devices,
        hidden_devices=joined.hidden,
        links=join_links(joined.devices, nvml.links, torch.peer_access),
        pci_gpus=pci_gpus,
        driver=replace(nvml.driver, cuda_version=nvml.driver.cuda_version or torch.driver_cuda_version),
        host=host,
        software=software or with_torch(read_software(environment=environment), torch),
        environment=read_environment(environment),
        network=network,
        warnings=(*nvml.warnings, *joined.warnings, *contradictions(nvml, torch, len(joined.devices)), *failed),
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return set_apart_other_vendors(found)


def contradictions(nvml: NvmlReading, torch: TorchReading, num_devices: int) -> tuple[str, ...]:
    """Contradictions between sources about the `num_devices` visible GPUs."""
    warnings = []
    if torch.error:
        warnings.append(f"torch could not be looked at: {torch.error}")
    if torch.cuda_error:
        warnings.append(f"torch reports of CUDA: {torch.cuda_error}")
    if torch.stopped:
        warnings.append(f"not all of torch could be looked at, {torch.stopped}")
    if torch.devices and nvml.driver.nvml_error:
        warnings.append(f"NVML does not answer ({nvml.driver.nvml_error}): the facts of the GPUs come from CUDA alone")
    if num_devices and torch.build and not torch.devices:
        kind = f"built for CUDA {torch.build.cuda}" if torch.build.cuda else "a CPU build"
        warnings.append(f"the driver lists {num_devices} usable GPU(s), torch {torch.build.version} ({kind}) none")
    return tuple(warnings)
