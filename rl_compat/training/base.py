"""The base of the training engines: micro-batches that add up to a batch, optimizer steps, and saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from rl_compat.batch import Batch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import NotFiniteError, RLCompatError, not_finite_hint
from rl_compat.models.load import autocast_for
from rl_compat.models.lora import trainable_parameters
from rl_compat.planning.types import RolePlan
from rl_compat.training.agreement import Agreement
from rl_compat.training.memory import HostWeights, unless_out_of_memory
from rl_compat.training.micro_batches import (
    Layout,
    MicroBatches,
    MicroBatchLimits,
    TokenMatrix,
    filler,
    lowest,
    on_device,
)
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.sharding import shard_model
from rl_compat.training.state import CopyPlace, load_trained_weights
from rl_compat.training.step import OptimizerStep
from rl_compat.training.types import BatchTotals, LossFunction, TokenOutputs

Outputs = TypeVar("Outputs", TokenOutputs, Tensor)
Result = TypeVar("Result")
Metrics = Mapping[str, float | Tensor]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Numbers that are not finite."""

    fact: str
    "which, and where"
    hint: str


@dataclass(frozen=True, slots=True)
class _Pass:
    """The results of a forward and backward over all micro-batches of this rank."""

    metrics: dict[str, float]
    "of this rank"
    num_micro_batches: int
    "of every rank"
    fault: _Fault | None
    "of this rank"


class TrainEngine:
    """One model on one device, with the optimizer of its trainable weights unless it is frozen.

    The plan chooses the optimizer, the settings its hyperparameters. Batches are the share of this rank; batches and
    results are on the CPU. All ranks make the same calls and share all decisions.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        role: RolePlan,
        optimizer: OptimizerSettings | None,
        layout: Layout = Layout(),
        ranks: Ranks = Solo(),
        root: nn.Module | None = None,
    ) -> None:
        """`root` is the module whose forward the engine calls: it has the parameters of the model, which it is itself
        by default."""
        self.model = model
        self._root = model if root is None else root
        self._units = shard_model(self._root, role=role, ranks=ranks)
        self._modules = list(model.modules())
        self.role = role
        self.layout = layout
        self.ranks = ranks
        self.limits = MicroBatchLimits(max_rows=role.micro_batch_size, max_tokens=role.max_tokens_per_micro_batch)
        self.step = None if optimizer is None else OptimizerStep(model, role=role, settings=optimizer, ranks=ranks)
        self.notes: list[str] = []
        on_gpu = torch.device(role.device).type != "cpu"
        self._host_weights = HostWeights(model, role.device) if role.offload_idle and on_gpu else None
        self._running_rows: list[int] = []
        self._agreement = Agreement(self._root, ranks=ranks, device=role.device)
        self._proven_tokens: dict[tuple[bool, bool], int] = {}
        "of the largest micro-batch that fitted, without a gradient and with one, before the first step and after it"

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained weights by name: tied weights once, empty for a frozen model."""
        return {} if self.step is None else self.step.parameters

    def offload(self) -> None:
        """Move the weights to host memory if the plan offloads them."""
        if self._host_weights is not None:
            if self.step is not None:
                self.step.wait_for_copy()
            self._host_weights.offload()

    def onload(self) -> None:
        """Move the weights back to the device."""
        if self._host_weights is not None:
            self._host_weights.onload()

    @contextmanager
    def onloaded(self) -> Iterator[None]:
        """Inside the block the weights are on the device; afterwards they are where the plan keeps idle weights."""
        self.onload()
        try:
            yield
        finally:
            self.offload()

    def take_notes(self) -> list[str]:
        """Notes for the user since the last call."""
        taken, self.notes = self.notes, []
        return taken

    def save_state(self, folder: Path) -> None:
        """Write trained weights, optimizer, schedule step and loss scale. Rank 0 writes what all ranks hold.

        The files are those of one process, and load on any number of ranks.
        """
        try:
            self._trained().save(folder, limits=(self.limits.max_rows, self.limits.max_tokens))
        finally:
            self.ranks.barrier()

    def load_state(self, folder: Path) -> None:
        """Continue from a saved state: the next steps equal those of a run that never stopped.

        Raises CheckpointError for files that are missing, damaged or of another model.
        """
        with self.onloaded():  # the optimizer puts its state on the device of the weights
            max_rows, max_tokens = self._trained().load(folder)
        self.limits = MicroBatchLimits(max_rows=max_rows, max_tokens=max_tokens)

    def load_weights(self, folder: Path) -> None:
        """Load only the trained weights of a saved state, for an engine without an optimizer.

        Raises CheckpointError as `load_state` does.
        """
        load_trained_weights(folder, trainable_parameters(self.model))

    def mark_state(self) -> None:
        """Record the current state without a copy: `put_back_state` restores it as long as no weight has changed."""
        self._trained().mark(limits=(self.limits.max_rows, self.limits.max_tokens))

    def keep_state(self, place: CopyPlace) -> None:
        """Copy the current state, for `put_back_state`: next to the state where it has room, or to host memory.

        The copy may still run when this returns; the next optimizer step waits for it.
        """
        self._trained().keep(limits=(self.limits.max_rows, self.limits.max_tokens), place=place)

    def put_back_state(self) -> None:
        """Restore the state of the last `mark_state` or `keep_state`. Gradients are dropped.

        Raises RLCompatError when weights have changed since a `mark_state`.
        """
        with self.onloaded():  # the optimizer puts its state on the device of the weights
            max_rows, max_tokens = self._trained().put_back()
        self.limits = MicroBatchLimits(max_rows=max_rows, max_tokens=max_tokens)

    def _evaluate(
        self, batch: Batch, compute: Callable[[TokenMatrix], list[Tensor]], *, num_columns: int
    ) -> list[Tensor]:
        """`compute` gives `num_columns` `[b, t]` tensors per micro-batch; returned as `[B, T]`, fp32, on the CPU."""

        def attempt(micro_batches: MicroBatches) -> list[Tensor]:
            columns = [torch.zeros(batch.response_ids.shape) for _ in range(num_columns)]
            for rows, micro_batch in self._select(batch, micro_batches):
                with torch.no_grad(), autocast_for(self.role):
                    outputs = compute(self._matrix(micro_batch))
                for column, output in zip(columns, outputs, strict=True):
                    if rows:
                        column[rows, : output.shape[1]] = output.float().cpu()
            return columns

        columns = self._within_memory(batch.sequence_lengths(), attempt, groups=batch.groups.tolist())
        bad = ~columns[0].isfinite() & batch.response_mask
        self._stop_at_fault(self._fault(batch, bad, phase="without a gradient"))
        return columns

    def _stop_at_fault(self, fault: _Fault | None) -> None:
        """Raise NotFiniteError on all ranks if one rank found numbers that are not finite."""
        found = [each for each in self.ranks.gather(fault) if each is not None]
        if found:
            fact = f"`{self.role.role}` in `{self.role.compute_dtype}`: {found[0].fact}"
            raise NotFiniteError(fact, hint=found[0].hint)

    def _fault(self, batch: Batch, bad: Tensor, *, phase: str) -> _Fault | None:
        """The first of the marked output tokens `[B, T]`; None if none is marked."""
        places = bad.nonzero()[:1].tolist()
        if not places:
            return None
        row, token = places[0]
        return _Fault(
            f"the outputs of the model {phase} are not finite at token {token + 1} of {_named(batch, [row])}",
            hint=not_finite_hint(self.role.compute_dtype, setting="plan.compute_dtype"),
        )

    def _update(
        self, batch: Batch, *, loss: LossFunction[Outputs], compute: Callable[[TokenMatrix], Outputs]
    ) -> dict[str, float]:
        """One optimizer step over a mini-batch, which is the shares of all ranks together.

        Returns the summed metrics of the loss and those of the step, the same on every rank. A gradient that overflows
        in fp16 is computed again, with the same random numbers, at lower and lower loss scales.
        """
        step = self._trained()
        totals = self._totals(batch)
        if totals.num_tokens == 0:
            self.notes.append(f"`{self.role.role}`: a mini-batch without tokens to train on was skipped")
            return step.skip()
        attempt = partial(self._forward_backward, batch, totals, loss, compute)
        restore_random_state = random_state(self.role.device)

        def culprits() -> str:
            restore_random_state()
            return self._rows_of_bad_gradient(batch, attempt)

        self._set_training(True)
        try:
            while True:
                done = self._within_memory(batch.sequence_lengths(), attempt, groups=batch.groups.tolist())
                self._stop_at_fault(done.fault)
                taken = step.step(culprits=culprits)
                if taken is not None:
                    break
                restore_random_state()
        finally:
            self._set_training(False)
        if taken["skipped_steps"]:
            return taken
        metrics = _merged(self.ranks.gather(done.metrics)[:: self.ranks.num_processes // self.ranks.size])
        return metrics | {"num_micro_batches": float(done.num_micro_batches)} | taken

    def _set_training(self, mode: bool) -> None:
        """What `train(mode)` of the model does, without a search of its tree, which costs milliseconds."""
        for module in self._modules:
            module.training = mode

    def _totals(self, batch: Batch) -> BatchTotals:
        mask = batch.response_mask
        counts = self.ranks.sum(torch.stack([mask.sum(), mask.any(dim=1).sum()]))
        num_tokens, num_sequences = counts.tolist()
        return BatchTotals(num_tokens=num_tokens, num_sequences=num_sequences)

    def _forward_backward(
        self,
        batch: Batch,
        totals: BatchTotals,
        loss: LossFunction[Outputs],
        compute: Callable[[TokenMatrix], Outputs],
        micro_batches: MicroBatches,
    ) -> _Pass:
        scale = self._trained().scaler.scale
        self._trained().zero_grad()
        parts: list[Metrics] = []
        losses: list[Tensor] = []
        numbers: list[tuple[list[int], Tensor]] = []
        for number, (rows, micro_batch) in enumerate(self._select(batch, micro_batches), start=1):
            self._units.before_backward(is_last=number == len(micro_batches))
            matrix = self._matrix(micro_batch)
            micro_batch = on_device(micro_batch, self.role.device)
            with autocast_for(self.role):
                outputs = compute(matrix)
            if not rows:
                outputs_of_filler = outputs if isinstance(outputs, Tensor) else outputs.logprobs
                outputs_of_filler.backward(torch.zeros_like(outputs_of_filler))
                continue
            numbers.append((rows, (outputs if isinstance(outputs, Tensor) else outputs.logprobs).detach()))
            value, metrics = loss(micro_batch, outputs, totals)
            (value * scale).backward()
            losses.append(value.detach().float())
            parts.append({name: part.detach() if isinstance(part, Tensor) else part for name, part in metrics.items()})
        bad = torch.zeros_like(batch.response_mask)
        if numbers and not bool(torch.stack([output.isfinite().all() for _, output in numbers]).all()):
            for rows, output in numbers:
                bad[rows, : output.shape[1]] = ~output.isfinite().cpu()
        fault = self._fault(batch, bad & batch.response_mask, phase="in the update")
        if fault is None and losses and not bool(torch.stack(losses).isfinite().all()):
            computed = zip(filter(None, micro_batches), losses, strict=True)
            rows = next(rows for rows, value in computed if not value.isfinite())
            fault = _Fault(
                f"the loss in the update is not finite for {_named(batch, rows)}, and the outputs of the model are",
                hint="look at the rewards and advantages of these rows",
            )
        return _Pass(metrics=_merged(parts), num_micro_batches=len(micro_batches), fault=fault)

    def _rows_of_bad_gradient(self, batch: Batch, attempt: Callable[[MicroBatches], _Pass]) -> str:
        """The rows of the first micro-batch whose gradient is not finite, on the first rank that has one."""

        def search(micro_batches: MicroBatches) -> str | None:
            found = None
            for rows in micro_batches:
                for own in self._trained().one_rank_at_a_time(rows):
                    attempt([own])
                    if not self._trained().gradient_is_finite() and own and found is None:
                        found = _named(batch, own)
            return found

        found = self._within_memory(batch.sequence_lengths(), search, groups=batch.groups.tolist())
        return next((rows for rows in self.ranks.gather(found) if rows is not None), "the sum over all rows")

    def _select(self, batch: Batch, micro_batches: MicroBatches) -> Iterator[tuple[list[int], Batch]]:
        """Row numbers and rows of each micro-batch; a filler for one without rows."""
        for rows in micro_batches:
            self._running_rows = rows
            yield rows, batch.select(rows) if rows else filler()

    def _matrix(self, micro_batch: Batch) -> TokenMatrix:
        places = self.layout.places(micro_batch.sequence_lengths(), self.limits)
        return TokenMatrix.from_batch(micro_batch, device=self.role.device, places=places)

    def _within_memory(
        self, lengths: Sequence[int], attempt: Callable[[MicroBatches], Result], *, groups: Sequence[int] = ()
    ) -> Result:
        """Run `attempt` on the rows in micro-batches; if they do not fit, run it again from the start in smaller ones.

        All ranks run the same number of micro-batches, the last ones without rows where a rank has fewer. When one rank
        runs out of memory, all of them start again, with the same limits and the same random numbers. A sharded model
        does so in micro-batches that are larger than any before; in others, the rank that has no memory raises.
        """
        restore_random_state = random_state(self.role.device)
        phase = self.model.training, self.step is not None and self.step.num_updates > 0
        while True:
            micro_batches = self.layout.split(lengths, self.limits, groups=groups)
            sizes = [self.layout.num_tokens([lengths[row] for row in rows], self.limits) for rows in micro_batches]
            largest = max(sizes, default=0)
            counts, are_larger = zip(
                *self.ranks.gather((len(micro_batches), largest > self._proven_tokens.get(phase, 0))), strict=True
            )
            num_fillers = max(counts) - len(micro_batches)
            with self._agreement.watching(any(are_larger)):
                done = unless_out_of_memory(partial(attempt, micro_batches + [[]] * num_fillers))
            failed = self._running_rows if done is None and not self._agreement.interrupted else None
            if failed is not None and not self._agreement.can_retry:
                raise self._too_long([lengths[row] for row in failed], where=self._place(self.ranks.process))
            if not self._agreement.interrupted and not self.ranks.any(done is None):
                assert done is not None
                self._units.reshard()
                self._proven_tokens[phase] = max(largest, self._proven_tokens.get(phase, 0))
                return done.value
            self._units.abandon()
            self._shrink(None if failed is None else [lengths[row] for row in failed])
            smaller = self.layout.split(lengths, self.limits, groups=groups)
            is_stuck = failed is not None and (not failed or any(set(failed) <= set(rows) for rows in smaller))
            self._stop_if_stuck([lengths[row] for row in failed or ()] if is_stuck else None)
            restore_random_state()

    def _shrink(self, lengths: Sequence[int] | None) -> None:
        """From now on, limit all ranks to half of a micro-batch that did not fit, whose rows had these lengths."""
        if self.step is not None:
            self.step.zero_grad()
        limits = self.limits
        if lengths is not None and len(lengths) > 1:
            limits = limits.halved(len(lengths), self.layout.num_tokens(lengths, limits))
        self.limits = lowest(self.ranks.gather(limits))
        if lengths is not None and len(lengths) > 1:
            self.notes.append(
                f"`{self.role.role}` ran out of memory with {len(lengths)} sequences of up to {max(lengths)} tokens; "
                f"the step is repeated, and micro-batches now have at most {self.limits.max_rows} sequences and "
                f"{self.limits.max_tokens} tokens"
            )

    def _stop_if_stuck(self, lengths: Sequence[int] | None) -> None:
        """Raise on all ranks if one rank cannot compute rows of these lengths in smaller micro-batches."""
        for rank, stuck in enumerate(self.ranks.gather(lengths)):
            if stuck is not None:
                raise self._too_long(stuck, where=self._place(rank))

    def _place(self, rank: int) -> str:
        return f"`{self.role.device}`" + (f" of rank {rank}" if self.ranks.num_processes > 1 else "")

    def _too_long(self, lengths: Sequence[int], *, where: str) -> RLCompatError:
        what = "one sequence of" if len(lengths) < 2 else f"{len(lengths)} sequences of one group, of up to"
        return RLCompatError(
            f"`{self.role.role}`: {what} {max(lengths, default=2)} tokens does not fit on {where}",
            hint="use `plan.gradient_checkpointing=true`, a smaller `plan.logprob_chunk_tokens`, "
            "or a shorter `data.max_response_length`",
        )

    def _trained(self) -> OptimizerStep:
        assert self.step is not None, f"`{self.role.role}` is frozen"
        return self.step


def _named(batch: Batch, rows: Sequence[int]) -> str:
    """Rows of a batch by their numbers in the data, or by their place in the batch: `row 4`, `rows 4, 7`."""
    numbers = sorted(set(rows if batch.rows is None else batch.rows[list(rows)].tolist()))
    noun = "row" if batch.rows is not None else "response"
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def random_state(device: str) -> Callable[[], None]:
    """Save torch's generators of the CPU and of `device`; returns a function that restores them."""
    on_gpu = torch.device(device).type == "cuda"
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if on_gpu else None

    def restore() -> None:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)

    return restore


def _merged(parts: Sequence[Metrics]) -> dict[str, float]:
    """The metrics of micro-batches or ranks: sums, or the maximum if the name ends in `_max`."""
    merged: dict[str, float | Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in merged:
                merged[name] = value
            elif name.endswith("_max"):
                merged[name] = torch.maximum(torch.as_tensor(merged[name]), torch.as_tensor(value))
            else:
                merged[name] = merged[name] + value
    return {name: float(value) for name, value in merged.items()}
