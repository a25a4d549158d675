"""From gradients to new weights: unscaling, clipping, the schedule, and the steps that are better not taken."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from rl_compat.errors import RLCompatError
from rl_compat.models.lora import trainable_parameters
from rl_compat.planning.types import RolePlan
from rl_compat.training import memory
from rl_compat.training.loss_scaling import LossScaler
from rl_compat.training.offload import OffloadedOptimizer
from rl_compat.training.optimizers import OptimizerSettings, build_optimizer, set_learning_rate
from rl_compat.training.state import load_training_state, save_training_state

MAX_SKIPS_IN_A_ROW = 5
Limits = tuple[int, int | None]
"sequences and tokens of a micro-batch"


class OptimizerStep:
    """The optimizer of a model's trainable weights. Which one it is comes from the plan, its numbers from settings."""

    def __init__(self, model: nn.Module, *, role: RolePlan, settings: OptimizerSettings) -> None:
        self.role = role
        self.settings = replace(settings, name=role.optimizer)
        self.parameters = trainable_parameters(model)
        self.optimizer = self._build()
        self.scaler = LossScaler(enabled=role.loss_scaling)
        self.num_updates = 0
        "mini-batches seen, skipped ones included: the step of the learning-rate schedule"
        self.skips_in_a_row = 0

    def _build(self) -> torch.optim.Optimizer | OffloadedOptimizer:
        build = partial(build_optimizer, settings=self.settings)
        if self.role.offload_optimizer and torch.device(self.role.device).type != "cpu":
            return OffloadedOptimizer(self.parameters, build)
        return build(self.parameters)

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def skip(self) -> dict[str, float]:
        """Count a mini-batch from which nothing can be learned."""
        rate = self.settings.lr_at(self.num_updates)
        self.num_updates += 1
        return {"lr": rate, "skipped_steps": 1.0}

    def step(self) -> dict[str, float]:
        """Change the weights by their gradients, which are gone afterwards; returns the step's metrics.

        A gradient that is not finite changes nothing and halves the loss scale. Raises RLCompatError after
        MAX_SKIPS_IN_A_ROW of them, or when the optimizer's states do not fit.
        """
        rate = self.settings.lr_at(self.num_updates)
        self.num_updates += 1
        metrics = {"lr": rate} | ({"loss_scale": self.scaler.scale} if self.scaler.enabled else {})
        grad_norm = self._unscale_and_clip()
        finite = math.isfinite(grad_norm)
        self.scaler.update(overflowed=not finite)
        if finite:
            self._apply(rate)
        self.zero_grad()
        self._count(skipped=not finite)
        return metrics | ({"skipped_steps": 0.0, "grad_norm": grad_norm} if finite else {"skipped_steps": 1.0})

    def _unscale_and_clip(self) -> float:
        """The length of the gradient before it is cut to the limit."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        assert grads, "the loss does not depend on any trained weight"
        if self.scaler.scale != 1.0:
            for grad in grads:
                grad.mul_(1.0 / self.scaler.scale)
        limit = self.settings.max_grad_norm or math.inf
        return float(nn.utils.clip_grad_norm_(self.parameters.values(), limit))

    def _apply(self, rate: float) -> None:
        set_learning_rate(self.optimizer, rate)
        if memory.unless_out_of_memory(self.optimizer.step) is None:
            raise RLCompatError(
                f"`{self.role.role}`: the optimizer's states do not fit on `{self.role.device}`",
                hint="use `optimizer.name=adamw8bit`, `plan.offload_optimizer=true` or `model.lora_rank=16`",
            )

    def _count(self, *, skipped: bool) -> None:
        self.skips_in_a_row = self.skips_in_a_row + 1 if skipped else 0
        if self.skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise RLCompatError(
                f"`{self.role.role}` had {self.skips_in_a_row} optimizer steps in a row whose gradient is not finite "
                f"in `{self.role.compute_dtype}`",
                hint="use `plan.compute_dtype=fp32`, or a smaller learning rate; the weights are those before them",
            )

    def save(self, folder: Path, *, limits: Limits) -> None:
        """Write weights, optimizer and counters, with the micro-batch limits that were found to fit."""
        progress = {
            "num_updates": self.num_updates,
            "skips_in_a_row": self.skips_in_a_row,
            "scaler": self.scaler.state(),
            "limits": limits,
            "planned_limits": self._planned_limits(),
        }
        save_training_state(
            folder,
            parameters=self.parameters,
            optimizer_name=self.settings.name,
            optimizer=self.optimizer,
            progress=progress,
        )

    def load(self, folder: Path) -> Limits:
        """Read what `save` wrote; returns the limits to go on with: the saved ones unless the plan has changed."""
        progress = load_training_state(
            folder, parameters=self.parameters, optimizer_name=self.settings.name, optimizer=self.optimizer
        )
        if isinstance(self.optimizer, OffloadedOptimizer):
            self.optimizer.read_parameters()
        self.num_updates = progress["num_updates"]
        self.skips_in_a_row = progress["skips_in_a_row"]
        self.scaler.load(progress["scaler"])
        planned = self._planned_limits()
        limits: Limits = progress["limits"] if progress["planned_limits"] == planned else planned
        return limits

    def _planned_limits(self) -> Limits:
        return self.role.micro_batch_size, self.role.max_tokens_per_micro_batch
