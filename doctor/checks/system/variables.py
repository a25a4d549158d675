"""Environment variables that slow training down, change its numbers, or have no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.devices import torch_version
from rl_compat.capability.kernels import TF32_MINIMUM
from rl_compat.doctor.findings import Finding, Remedy, finding, ok
from rl_compat.doctor.remedies import shell, unset
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware

OFF = ("", "0", "false", "False", "no")
NOT_READ_BY_VLLM_FROM = (0, 15)


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable and when it matters."""

    name: str
    case: str
    matters: Callable[[Hardware, str], bool]
    what: str
    remedies: Callable[[Hardware], tuple[Remedy, ...]] | None = None
    "unset it if None"


def check_variables(hardware: Hardware) -> Iterator[Finding]:
    """A finding for each variable that matters here, or one that none does."""
    found = False
    for variable in VARIABLES:
        value = hardware.environment.get(variable.name)
        if value is None or not variable.matters(hardware, value):
            continue
        found = True
        remedies = variable.remedies(hardware) if variable.remedies else (unset(variable.name),)
        what = f"`{variable.name}={value}` {variable.what}"
        yield finding(f"environment.{variable.case}", what, *remedies, where=(variable.name,))
    if not found:
        yield ok("environment.clean", "no environment variable slows torch down", "environment")


def _on(hardware: Hardware, value: str) -> bool:
    return bool(hardware.devices) and value.strip() not in OFF


def _tf32(hardware: Hardware) -> bool:
    return any(device.compute_capability >= TF32_MINIMUM for device in hardware.devices)


def _eager(hardware: Hardware, value: str) -> bool:
    return bool(hardware.devices) and value.strip().upper() == "EAGER"


def _too_early(hardware: Hardware, value: str) -> bool:
    """Whether this torch does not read the new name of the variable, and the old one is not set either."""
    rows = read_table("torch")["features"]
    since = next(parse_version(row["torch_min"]) for row in rows if row["id"] == "alloc_conf")
    version = torch_version(hardware)
    old = hardware.environment.get("PYTORCH_CUDA_ALLOC_CONF")
    return version is not None and parse_version(version) < since and bool(hardware.devices) and old is None


def _old_name(hardware: Hardware) -> tuple[Remedy, ...]:
    value = hardware.environment["PYTORCH_ALLOC_CONF"]
    return (shell("use the name that this torch reads", f"export PYTORCH_CUDA_ALLOC_CONF={value}"),)


def _ignored_by_vllm(hardware: Hardware, value: str) -> bool:
    version = hardware.software.packages.get("vllm")
    return version is not None and parse_version(version) >= NOT_READ_BY_VLLM_FROM


VARIABLES = (
    Variable("CUDA_LAUNCH_BLOCKING", "launch_blocking", _on, "makes every kernel wait for the previous one"),
    Variable(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "no_caching",
        lambda hardware, value: bool(hardware.devices),
        "disables torch's memory cache",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "tf32_off",
        lambda hardware, value: value.strip() == "0" and _tf32(hardware),
        "disables TF32 in every library, whatever the plan says",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "tf32_on",
        lambda hardware, value: value.strip() == "1" and _tf32(hardware),
        "enables TF32 in every library, whatever the plan says",
    ),
    Variable(
        "CUDA_MODULE_LOADING", "eager_loading", _eager, "loads every kernel at the start instead of at its first use"
    ),
    Variable(
        "PYTORCH_ALLOC_CONF",
        "alloc_conf_not_read",
        _too_early,
        "has a name that this torch reads only in part or not at all",
        _old_name,
    ),
    *(
        Variable(name, "hip_not_read", lambda hardware, value: bool(hardware.devices), "has no effect on NVIDIA GPUs")
        for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    ),
    Variable(
        "VLLM_ATTENTION_BACKEND", "vllm_backend_not_read", _ignored_by_vllm, "has no effect: vLLM ignores it since 0.15"
    ),
)
