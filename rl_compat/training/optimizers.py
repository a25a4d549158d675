"""Optimizers by name, AdamW and AdamW with 8-bit states, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

from rl_compat.config.types import Schedule, StepConfig
from rl_compat.errors import HardwareError, nearest
from rl_compat.models.parts import mesh_of

NAMES = ("adamw", "adamw8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings(StepConfig):
    """The optimizer settings of one role."""

    lr: float
    total_steps: int | None = None
    "optimizer steps of the whole run, required by `linear` and `cosine`"
    steps_per_batch: int | None = None
    "optimizer steps by which the schedule advances per batch; None counts the actual steps"

    def lr_at(self, step: float) -> float:
        """The learning rate at optimizer step `step`, counted from 0."""
        return learning_rate(
            step,
            lr=self.lr,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.total_steps,
            min_lr_fraction=self.min_lr_fraction,
        )


def parameter_groups(parameters: Mapping[str, nn.Parameter], *, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay; norms, biases and other vectors without."""
    matrices = [parameter for parameter in parameters.values() if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters.values() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """An optimizer of named parameters, on their device. Raises HardwareError without bitsandbytes."""
    groups = parameter_groups(parameters, weight_decay=settings.weight_decay)
    options: dict[str, Any] = {"lr": settings.lr_at(0), "betas": settings.betas, "eps": settings.eps}
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, **options, **_kernel(parameters.values()))
    if settings.name == "adamw8bit":
        eight_bit: torch.optim.Optimizer = _bitsandbytes().optim.AdamW8bit(groups, **options)
        return eight_bit
    raise HardwareError(
        f"`{settings.name}` is not an optimizer", hint=f"did you mean `{nearest(settings.name, NAMES) or NAMES[0]}`"
    )


class HasGroups(Protocol):
    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


def set_learning_rate(optimizer: HasGroups, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _kernel(parameters: Iterable[nn.Parameter]) -> dict[str, Literal[True]] | dict[str, bool]:
    """Whether torch has a fused kernel: for fp32 parameters on the CPU or on CUDA that the same ranks share."""
    parameters = list(parameters)
    fused = all(p.dtype == torch.float32 and p.device.type in ("cpu", "cuda") for p in parameters)
    fused = fused and len({mesh_of(p) for p in parameters}) == 1
    return {"fused": True} if fused else {"foreach": False}


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise HardwareError(
            "`optimizer.name=adamw8bit` needs the package `bitsandbytes`, which is not installed",
            hint="install `rl_compat[quant]`, or use `optimizer.name=adamw`",
        ) from error
    return bitsandbytes


def learning_rate(
    step: float,
    *,
    lr: float,
    schedule: Schedule,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    min_lr_fraction: float = 0.0,
) -> float:
    """The learning rate at optimizer step `step`, counted from 0.

    It rises linearly over `warmup_steps`, is `lr` at step `warmup_steps`, and falls to `lr * min_lr_fraction` at
    step `total_steps`. A resumed run with another total continues on the new curve, without a second warm-up.
    """
    if step < warmup_steps:
        return lr * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return lr
    assert total_steps is not None, f"a {schedule} schedule needs the total number of steps"
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    shape = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return lr * (min_lr_fraction + (1.0 - min_lr_fraction) * shape)
