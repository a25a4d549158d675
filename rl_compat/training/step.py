"""Optimizer steps: sum over ranks, loss scaling, clipping, the schedule, and skipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rl_compat.config.types import OptimizerName
from rl_compat.distributed.ranks import Ranks
from rl_compat.errors import NotFiniteError, RLCompatError
from rl_compat.models.lora import trainable_parameters
from rl_compat.models.parts import local, mesh_of, whole
from rl_compat.planning.types import RolePlan
from rl_compat.training.memory import OffloadedOptimizer, unless_out_of_memory
from rl_compat.training.optimizers import OptimizerSettings, build_optimizer, set_learning_rate
from rl_compat.training.state import CopyPlace, StateCopy, load_training_state, save_training_state

MAX_SKIPS_IN_A_ROW = 5
Limits = tuple[int, int | None]
"sequences and tokens per micro-batch"


@dataclass(frozen=True, slots=True)
class _Mark:
    """A state to return to."""

    progress: dict[str, Any]
    num_changes: int
    copied: bool


class OptimizerStep:
    """The optimizer of a model's trainable weights. The plan selects it, the settings configure it."""

    def __init__(self, model: nn.Module, *, role: RolePlan, settings: OptimizerSettings, ranks: Ranks) -> None:
        self.role = role
        self.settings = replace(settings, name=cast(OptimizerName, role.optimizer))
        self.ranks = ranks
        self.parameters = trainable_parameters(model)
        self._is_sharded = role.num_shards > 1
        self.optimizer = self._build()
        self.scaler = LossScaler(enabled=role.loss_scaling)
        self.num_updates: float = 0
        "optimizer steps taken, skipped ones excluded: the step of the learning-rate schedule"
        self.skips_in_a_row = 0
        self._num_changes = 0
        "calls of the optimizer"
        self._copy = StateCopy()
        self._marked: _Mark | None = None

    def _build(self) -> torch.optim.Optimizer | OffloadedOptimizer:
        build = partial(build_optimizer, settings=self.settings)
        if self.role.offload_optimizer and torch.device(self.role.device).type != "cpu":
            return OffloadedOptimizer(self.parameters, build)
        return build(self.parameters)

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def skip(self) -> dict[str, float]:
        """The metrics of a mini-batch without a step. The learning-rate schedule does not advance."""
        return {"lr": self.settings.lr_at(self.num_updates), "skipped_steps": 1.0}

    def step(self, *, culprits: Callable[[], str]) -> dict[str, float] | None:
        """Update the weights and free the gradients; returns the metrics of the step.

        If a gradient is not finite on one rank, nothing changes on any rank. The result None means that the gradient
        overflowed and the loss scale was halved: compute the same mini-batch again. Raises RLCompatError when the
        gradient overflows at the lowest loss scale and after MAX_SKIPS_IN_A_ROW skipped steps, with the rows that
        `culprits` finds, and when the optimizer states do not fit.
        """
        scale = self.scaler.scale
        self._sum_over_ranks()
        grad_norm = self._unscale_and_clip()
        overflowed = self.ranks.any(not math.isfinite(grad_norm))
        if not overflowed:
            rate = self.settings.lr_at(self.num_updates)
            self._apply(rate)
            self.num_updates += 1
        self.zero_grad()
        if overflowed and self.scaler.enabled and not self.scaler.can_lower:
            raise self._not_finite(f"the gradient overflows at the lowest loss scale, {scale:g}", culprits)
        self.scaler.update(overflowed=overflowed)
        if overflowed and self.scaler.enabled:
            return None
        self.skips_in_a_row = self.skips_in_a_row + 1 if overflowed else 0
        if self.skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            count = self.skips_in_a_row
            raise self._not_finite(f"{count} optimizer steps in a row had a gradient that is not finite", culprits)
        scaled = {"loss_scale": scale} if self.scaler.enabled else {}
        return scaled | (self.skip() if overflowed else {"lr": rate, "skipped_steps": 0.0, "grad_norm": grad_norm})

    @torch.no_grad()
    def _sum_over_ranks(self) -> None:
        """Replace each gradient by its sum over the ranks. A weight without a gradient on every rank keeps none.

        Gradients of sharded weights are means over the ranks as soon as they are computed.
        """
        if self.ranks.size == 1 or self._is_sharded:
            return
        parameters = list(self.parameters.values())
        counts = self.ranks.sum(torch.tensor([parameter.grad is not None for parameter in parameters]).int())
        for parameter, count in zip(parameters, counts.tolist(), strict=True):
            if count:
                parameter.grad = self.ranks.sum(
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )

    def one_rank_at_a_time(self, rows: list[int]) -> list[list[int]]:
        """The rows of a micro-batch in each of the passes that give every rank's rows a gradient of their own."""
        if not self._is_sharded:
            return [rows]
        return [rows if rank == self.ranks.rank else [] for rank in range(self.ranks.size)]

    def gradient_is_finite(self) -> bool:
        """Whether the gradient is finite: that of this rank, or of all ranks where they share the weights."""
        grads = [local(p.grad) for p in self.parameters.values() if p.grad is not None]
        is_finite = all(bool(grad.isfinite().all()) for grad in grads)
        return not self.ranks.any(not is_finite) if self._is_sharded else is_finite

    def _unscale_and_clip(self) -> float:
        """The norm of the gradient before it is clipped."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        assert grads, "the loss does not depend on any trained weight"
        factor = (self.ranks.size if self._is_sharded else 1) / self.scaler.scale
        if factor != 1.0:
            for grad in grads:
                grad.mul_(factor)
        by_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
        for grad in grads:
            by_mesh.setdefault(mesh_of(grad), []).append(grad)
        norms = [whole(nn.utils.get_total_norm(shared)) for shared in by_mesh.values()]
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if norm > self.settings.max_grad_norm > 0:
            torch._foreach_mul_([local(grad) for grad in grads], self.settings.max_grad_norm / (norm + 1e-6))
        return norm

    def _apply(self, rate: float) -> None:
        self.wait_for_copy()
        self._num_changes += 1
        set_learning_rate(self.optimizer, rate)
        if self.ranks.any(unless_out_of_memory(self.optimizer.step) is None):
            raise RLCompatError(
                f"`{self.role.role}`: the optimizer states do not fit on `{self.role.device}`",
                hint="use `optimizer.name=adamw8bit`, `plan.offload_optimizer=true` or `model.lora_rank=16`",
            )

    def _not_finite(self, fact: str, culprits: Callable[[], str]) -> NotFiniteError:
        rows = culprits()
        self.zero_grad()
        remedy = "`plan.compute_dtype=fp32` or a" if self.role.compute_dtype == "fp16" else "a"
        return NotFiniteError(
            f"`{self.role.role}` in `{self.role.compute_dtype}`: {fact}; it comes from {rows}",
            hint=f"use {remedy} smaller learning rate; the weights are unchanged",
        )

    def save(self, folder: Path, *, limits: Limits) -> None:
        """Write weights, optimizer, counters, and the micro-batch limits that fit. Rank 0 writes what all hold."""
        save_training_state(
            folder if self.ranks.process == 0 else None,
            parameters=self.parameters,
            optimizer_name=self.settings.name,
            optimizer=self.optimizer,
            progress=self._progress(limits),
        )

    def _progress(self, limits: Limits) -> dict[str, Any]:
        return {
            "num_updates": self.num_updates,
            "skips_in_a_row": self.skips_in_a_row,
            "scaler": self.scaler.state(),
            "limits": limits,
            "planned_limits": self._planned_limits(),
        }

    def mark(self, *, limits: Limits) -> None:
        """Record the current state without a copy: `put_back` restores it as long as no weight has changed."""
        self._marked = _Mark(progress=self._progress(limits), num_changes=self._num_changes, copied=False)

    def keep(self, *, limits: Limits, place: CopyPlace) -> None:
        """Start to copy the current state, for `put_back`. A device without room leaves it to the host."""
        copy = partial(self._copy.start, self.parameters, self.optimizer)
        if place == "host" or unless_out_of_memory(partial(copy, place=place)) is None:
            copy(place="host")
        self._marked = _Mark(progress=self._progress(limits), num_changes=self._num_changes, copied=True)

    def wait_for_copy(self) -> None:
        """Call before weights change or move to another device."""
        self._copy.wait()

    def put_back(self) -> Limits:
        """Restore the state of the last `mark` or `keep`; returns its micro-batch limits.

        Raises RLCompatError when weights have changed since a `mark`.
        """
        marked = self._marked
        assert marked is not None, "no state is marked"
        self.zero_grad()
        if self._num_changes != marked.num_changes:
            if not marked.copied:
                raise RLCompatError(f"the update has changed the weights of `{self.role.role}`, and no copy was kept")
            self._copy.put_back(self.parameters, self.optimizer)
        return self._continue(marked.progress)

    def load(self, folder: Path) -> Limits:
        """Read what `save` wrote. Returns the micro-batch limits to use: the saved ones unless the plan has changed."""
        progress = load_training_state(
            folder, parameters=self.parameters, optimizer_name=self.settings.name, optimizer=self.optimizer
        )
        return self._continue(progress)

    def _continue(self, progress: dict[str, Any]) -> Limits:
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


LOWEST_SCALE = 2.0**-14
HIGHEST_SCALE = 2.0**24


class ScaleState(TypedDict):
    scale: float
    good_steps: int


class LossScaler:
    """A factor that halves when a gradient overflows and doubles after many steps without an overflow.

    A disabled scaler keeps the factor at 1. Unlike `torch.amp.GradScaler` it does not know optimizers, so the same code
    serves optimizers whose parameters live on another device. RL runs are short: the factor starts lower and grows
    sooner than in pre-training.
    """

    def __init__(self, *, enabled: bool, start: float = 2.0**13, growth_interval: int = 200) -> None:
        self.enabled = enabled
        self.scale = start if enabled else 1.0
        self.growth_interval = growth_interval
        self.good_steps = 0

    @property
    def can_lower(self) -> bool:
        return self.enabled and self.scale > LOWEST_SCALE

    def update(self, *, overflowed: bool) -> None:
        """Record whether a gradient overflowed."""
        if not self.enabled:
            return
        if overflowed:
            self.scale, self.good_steps = max(self.scale / 2, LOWEST_SCALE), 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = min(self.scale * 2, HIGHEST_SCALE), 0

    def state(self) -> ScaleState:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: ScaleState) -> None:
        self.scale, self.good_steps = state["scale"], state["good_steps"]
