"""Ask the driver, CUDA and the host what this machine is. Never raises: what cannot be read becomes a warning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rl_compat.hardware.cuda import read_torch
from rl_compat.hardware.host import read_host
from rl_compat.hardware.join import join
from rl_compat.hardware.nvml import read_nvml
from rl_compat.hardware.readings import NvmlReading, TorchReading
from rl_compat.hardware.software import read_software
from rl_compat.hardware.types import Driver, Hardware, Host

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "BNB_CUDA_VERSION",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "PYTHONPATH",
    "CONDA_PREFIX",
)


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
    nvml = read_nvml()
    torch = (
        TorchReading(looked=False)
        if torch_timeout_seconds is None
        else read_torch(environment=variables, timeout_seconds=torch_timeout_seconds)
    )
    host = read_host(environment=variables, folder=folder)
    return assemble(nvml, torch, host, environment=variables)


def assemble(nvml: NvmlReading, torch: TorchReading, host: Host, *, environment: Mapping[str, str]) -> Hardware:
    """One description of the machine out of the sources' readings."""
    joined = join(nvml, torch, environment)
    return Hardware(
        devices=joined.devices,
        hidden_devices=joined.hidden,
        driver=_driver(nvml, torch),
        host=host,
        software=read_software(torch),
        environment={name: environment[name] for name in VARIABLES if name in environment},
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
