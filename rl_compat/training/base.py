"""What all engines that learn share: micro-batches that add up to a batch, one optimizer step, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from rl_compat.batch import Batch
from rl_compat.errors import RLCompatError
from rl_compat.models.lora import merge_for_export, trainable_parameters
from rl_compat.planning.types import RolePlan
from rl_compat.training import memory
from rl_compat.training.layout import Layout
from rl_compat.training.micro_batches import MicroBatchLimits, TokenMatrix, on_device
from rl_compat.training.offload import HostWeights
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.precision import autocast_for
from rl_compat.training.state import load_trained_weights
from rl_compat.training.step import OptimizerStep
from rl_compat.training.types import BatchTotals, LossFunction

Outputs = TypeVar("Outputs")
Result = TypeVar("Result")
Metrics = Mapping[str, float | Tensor]


class TrainEngine:
    """One model on one device, with the optimizer of its trainable weights unless it is frozen.

    The optimizer is the plan's; its numbers are the settings'. Batches go in and results come out on the CPU.
    """

    def __init__(
        self, model: nn.Module, *, role: RolePlan, optimizer: OptimizerSettings | None, layout: Layout = Layout()
    ) -> None:
        self.model = model
        self.role = role
        self.layout = layout
        self.limits = MicroBatchLimits(max_rows=role.micro_batch_size, max_tokens=role.max_tokens_per_micro_batch)
        self.step = None if optimizer is None else OptimizerStep(model, role=role, settings=optimizer)
        self.notes: list[str] = []
        on_gpu = torch.device(role.device).type != "cpu"
        self._host_weights = HostWeights(model, role.device) if role.offload_idle and on_gpu else None
        self._running_rows: list[int] = []

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The weights that learn, by name; tied ones once, none of a frozen model."""
        return {} if self.step is None else self.step.parameters

    def offload(self) -> None:
        """Weights to host memory, where the plan says so."""
        if self._host_weights is not None:
            self._host_weights.offload()

    def onload(self) -> None:
        """Weights back on the device."""
        if self._host_weights is not None:
            self._host_weights.onload()

    @contextmanager
    def onloaded(self) -> Iterator[None]:
        """Inside, the weights are on the device; afterwards they are where the plan keeps idle ones."""
        self.onload()
        try:
            yield
        finally:
            self.offload()

    def take_notes(self) -> list[str]:
        """What is to be said to the user since the last call."""
        taken, self.notes = self.notes, []
        return taken

    def reset_peak(self) -> None:
        memory.reset_peak(self.role.device)

    def peak_bytes(self) -> int | None:
        """Most bytes held on the device since `reset_peak`; None on the CPU."""
        return memory.peak_bytes(self.role.device)

    def save_state(self, folder: Path) -> None:
        """Trained weights, optimizer, schedule step and loss scale."""
        self._trained().save(folder, limits=(self.limits.max_rows, self.limits.max_tokens))

    def load_state(self, folder: Path) -> None:
        """Continue from a saved state: the next steps are those of a run that never stopped.

        Raises CheckpointError for files that are missing, damaged or of another model.
        """
        max_rows, max_tokens = self._trained().load(folder)
        self.limits = MicroBatchLimits(max_rows=max_rows, max_tokens=max_tokens)

    def load_weights(self, folder: Path) -> None:
        """The trained weights of a saved state without the rest, for an engine that has no optimizer.

        Raises what `load_state` does.
        """
        load_trained_weights(folder, trainable_parameters(self.model))

    def export_state_dict(self) -> dict[str, Tensor]:
        """The weights under plain Hugging Face names on the CPU, adapters merged, tied weights once."""
        return merge_for_export(self.model)

    def _evaluate(self, batch: Batch, compute: Callable[[TokenMatrix], list[Tensor]]) -> list[Tensor]:
        """`compute` gives `[b, t]` tensors for each micro-batch; they come back as `[B, T]`, fp32, on the CPU."""

        def attempt(pieces: list[list[int]]) -> list[Tensor]:
            columns: list[Tensor] = []
            for rows, micro_batch in self._micro_batches(batch, pieces):
                with torch.no_grad(), autocast_for(self.role):
                    outputs = compute(self._matrix(micro_batch))
                columns = columns or [torch.zeros(batch.response_ids.shape) for _ in outputs]
                for column, output in zip(columns, outputs, strict=True):
                    column[rows, : output.shape[1]] = output.float().cpu()
            return columns

        return self._within_memory(batch.sequence_lengths(), attempt, groups=batch.groups.tolist())

    def _update(
        self, batch: Batch, *, loss: LossFunction[Outputs], compute: Callable[[TokenMatrix], Outputs]
    ) -> dict[str, float]:
        """One optimizer step over the whole batch; returns the summed metrics of the loss and the step's own."""
        step = self._trained()
        mask = batch.response_mask
        totals = BatchTotals(num_tokens=int(mask.sum()), num_sequences=int(mask.any(dim=1).sum()))
        if totals.num_tokens == 0:
            self.notes.append(f"`{self.role.role}`: a mini-batch has no token to train on, its step is skipped")
            return step.skip()

        def attempt(pieces: list[list[int]]) -> dict[str, float]:
            step.zero_grad()
            metrics: dict[str, float | Tensor] = {}
            for _, micro_batch in self._micro_batches(batch, pieces):
                for name, value in self._backward(micro_batch, totals, loss, compute).items():
                    metrics[name] = _together(name, metrics[name], value) if name in metrics else value
            return {name: float(value) for name, value in metrics.items()} | {"num_micro_batches": float(len(pieces))}

        self.model.train()
        try:
            metrics = self._within_memory(batch.sequence_lengths(), attempt, groups=batch.groups.tolist())
        finally:
            self.model.eval()
        taken = step.step()
        return taken if taken["skipped_steps"] else metrics | taken

    def _backward(
        self,
        micro_batch: Batch,
        totals: BatchTotals,
        loss: LossFunction[Outputs],
        compute: Callable[[TokenMatrix], Outputs],
    ) -> Metrics:
        with autocast_for(self.role):
            outputs = compute(self._matrix(micro_batch))
        value, metrics = loss(on_device(micro_batch, self.role.device), outputs, totals)
        (value * self._trained().scaler.scale).backward()
        return {name: part.detach() if isinstance(part, Tensor) else part for name, part in metrics.items()}

    def _micro_batches(self, batch: Batch, pieces: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
        for rows in pieces:
            self._running_rows = rows
            yield rows, batch.select(rows)

    def _matrix(self, micro_batch: Batch) -> TokenMatrix:
        places = self.layout.places(micro_batch.sequence_lengths(), self.limits)
        return TokenMatrix.from_batch(micro_batch, device=self.role.device, places=places)

    def _within_memory(
        self, lengths: Sequence[int], attempt: Callable[[list[list[int]]], Result], *, groups: Sequence[int] = ()
    ) -> Result:
        """Run `attempt` on the rows in pieces; when they do not fit, again from the start in smaller ones."""

        while True:
            pieces = self.layout.split(lengths, self.limits, groups=groups)
            done = memory.unless_out_of_memory(partial(attempt, pieces))
            if done is not None:
                return done.value
            failed = self._running_rows
            if len(failed) > 1:
                self._shrink([lengths[row] for row in failed])
            if any(set(failed) <= set(piece) for piece in self.layout.split(lengths, self.limits, groups=groups)):
                raise self._too_long([lengths[row] for row in failed])

    def _shrink(self, lengths: Sequence[int]) -> None:
        """Half of a micro-batch of rows with these lengths, from now on."""
        if self.step is not None:
            self.step.zero_grad()
        self.limits = self.limits.halved(len(lengths), self.layout.num_tokens(lengths, self.limits))
        self.notes.append(
            f"`{self.role.role}` ran out of memory with {len(lengths)} sequences of up to {max(lengths)} tokens: the "
            f"same step is done again, from now on with at most {self.limits.max_rows} sequences and "
            f"{self.limits.max_tokens} tokens in a micro-batch"
        )

    def _too_long(self, lengths: Sequence[int]) -> RLCompatError:
        alone = len(lengths) == 1
        what = "one sequence" if alone else f"{len(lengths)} sequences that belong together,"
        return RLCompatError(
            f"`{self.role.role}`: {what} of {'' if alone else 'up to '}{max(lengths)} tokens does not fit on "
            f"`{self.role.device}`",
            hint="use `plan.gradient_checkpointing=true`, a smaller `plan.logprob_chunk_tokens`, "
            "or a shorter `data.max_response_length`",
        )

    def _trained(self) -> OptimizerStep:
        assert self.step is not None, f"`{self.role.role}` is frozen"
        return self.step


def _together(name: str, one: float | Tensor, other: float | Tensor) -> float | Tensor:
    """What two micro-batches say of a metric."""
    if name.endswith("_max"):
        return torch.maximum(torch.as_tensor(one), torch.as_tensor(other))
    return one + other
