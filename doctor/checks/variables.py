"""Variables of the shell that slow training down, change its numbers, or have no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rl_compat.capability.devices import torch_version
from rl_compat.capability.kernels import TF32_MINIMUM
from rl_compat.doctor.findings import Finding, Remedy, Severity
from rl_compat.doctor.remedies import shell, unset
from rl_compat.doctor.tables.torch import read_knowledge
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Hardware

OFF = ("", "0", "false", "False", "no")
NOT_READ_BY_VLLM_FROM = (0, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable and when it matters."""

    name: str
    case: str
    severity: Severity
    matters: Callable[[Hardware, str], bool]
    what: str
    why: str
    remedies: Callable[[Hardware], tuple[Remedy, ...]] | None = None
    "to unset it when None"


def look_at_variables(hardware: Hardware) -> Iterator[Finding]:
    """A finding for each variable that matters here, or that none does."""
    found = False
    for variable in VARIABLES:
        value = hardware.environment.get(variable.name)
        if value is None or not variable.matters(hardware, value):
            continue
        found = True
        yield Finding(
            id=f"environment.{variable.case}",
            severity=variable.severity,
            what=f"`{variable.name}={value}` {variable.what}",
            why=variable.why,
            where=(variable.name,),
            affects=("training",),
            remedies=variable.remedies(hardware) if variable.remedies else (unset(variable.name),),
        )
    if not found:
        yield Finding(
            id="environment.clean",
            severity=Severity.OK,
            what="no variable of this shell slows torch down",
            where=("environment",),
        )


def _on(hardware: Hardware, value: str) -> bool:
    return bool(hardware.devices) and value.strip() not in OFF


def _tf32(hardware: Hardware) -> bool:
    return any(device.compute_capability >= TF32_MINIMUM for device in hardware.devices)


def _eager(hardware: Hardware, value: str) -> bool:
    return bool(hardware.devices) and value.strip().upper() == "EAGER"


def _too_early(hardware: Hardware, value: str) -> bool:
    """Whether this torch does not read the new name of the variable, and the old one is not set either."""
    rows = read_knowledge("torch")["features"]
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
    Variable(
        name="CUDA_LAUNCH_BLOCKING",
        case="launch_blocking",
        severity=Severity.WARNING,
        matters=_on,
        what="makes every kernel wait for the one before it",
        why="training takes several times as long; it is for finding the line that an error comes from",
    ),
    Variable(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        case="no_caching",
        severity=Severity.WARNING,
        matters=lambda hardware, value: bool(hardware.devices),
        what="takes torch's memory cache away",
        why="every tensor asks the driver for memory, which is many times slower; it is for debuggers",
    ),
    Variable(
        name="NVIDIA_TF32_OVERRIDE",
        case="tf32_off",
        severity=Severity.NOTE,
        matters=lambda hardware, value: value.strip() == "0" and _tf32(hardware),
        what="turns TF32 off in every library, whatever the plan says",
        why="fp32 products beside bf16 training run at a fraction of their rate",
    ),
    Variable(
        name="NVIDIA_TF32_OVERRIDE",
        case="tf32_on",
        severity=Severity.WARNING,
        matters=lambda hardware, value: value.strip() == "1" and _tf32(hardware),
        what="turns TF32 on in every library, whatever the plan says",
        why="a run that was planned with exact fp32 products has ten bits of mantissa instead, and nothing shows it",
    ),
    Variable(
        name="CUDA_MODULE_LOADING",
        case="eager_loading",
        severity=Severity.NOTE,
        matters=_eager,
        what="loads every kernel at the start instead of when it is first used",
        why="CUDA's context then takes hundreds of MiB more on every card, and the start takes longer",
    ),
    Variable(
        name="PYTORCH_ALLOC_CONF",
        case="alloc_conf_not_read",
        severity=Severity.NOTE,
        matters=_too_early,
        what="is a name that this torch reads only in part or not at all",
        why="settings such as `expandable_segments:True` are ignored without a word",
        remedies=_old_name,
    ),
    Variable(
        name="VLLM_ATTENTION_BACKEND",
        case="vllm_backend_not_read",
        severity=Severity.NOTE,
        matters=_ignored_by_vllm,
        what="has no effect: vLLM reads it no more since 0.15",
        why="the backend is chosen by `--attention-backend`",
    ),
)
