"""The engines of the roles: a policy gives log-probabilities, a critic values, a reward model a number per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method

from rl_compat.batch import Batch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.models.load import autocast_for
from rl_compat.models.scalar import RewardNetwork
from rl_compat.planning.types import RolePlan
from rl_compat.training.base import TrainEngine
from rl_compat.training.micro_batches import Layout, MicroBatches, TokenMatrix
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.output_head import SplitModel
from rl_compat.training.types import LossFunction, Statistic, TokenOutputs


class PolicyEngine(TrainEngine):
    """A causal language model as a policy: the actor, or with `optimizer=None` the reference.

    Probabilities are over all rows of the output matrix. Raises ModelError for a model whose logits are computed in an
    unsupported way.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        role: RolePlan,
        optimizer: OptimizerSettings | None,
        layout: Layout = Layout(),
        ranks: Ranks = Solo(),
    ) -> None:
        self._split = SplitModel(model)
        super().__init__(model, role=role, optimizer=optimizer, layout=layout, ranks=ranks, root=self._split)
        for method in ("check", "keeps_packed_rows_apart"):
            register_fsdp_forward_method(self._split, method)
        with autocast_for(role):
            self._split.check(model, role.device, role.compute_dtype)
            if layout.pack_tokens is not None and not self._split.keeps_packed_rows_apart(role.device):
                self.layout = replace(layout, pack_tokens=None)
                self.notes.append(
                    f"`{type(model).__name__}` attends across the rows of a pack: rows are padded instead"
                )
        self._units.reshard()

    def logprobs(self, batch: Batch, *, temperature: float, wanted: tuple[Statistic, ...] = ()) -> TokenOutputs:
        """Log-probability of each response token and the requested statistics, [B, T] on the CPU, without gradient.

        They are those of the tempered softmax; a temperature of 0 (greedy) counts as 1.
        """
        names = ["logprobs", *wanted]

        def compute(matrix: TokenMatrix) -> list[Tensor]:
            outputs = self._outputs(matrix, temperature=temperature, wanted=wanted)
            return [getattr(outputs, name) for name in names]

        columns = self._evaluate(batch, compute, num_columns=len(names))
        return TokenOutputs(**dict(zip(names, columns, strict=True)))

    def update(
        self,
        batch: Batch,
        *,
        loss: LossFunction[TokenOutputs],
        temperature: float,
        wanted: tuple[Statistic, ...] = (),
    ) -> dict[str, float]:
        """One optimizer step over the mini-batch. The loss sees `TokenOutputs` of each micro-batch.

        Returns the summed metrics of the loss with `grad_norm`, `lr`, `skipped_steps` and `num_micro_batches`; a
        skipped step returns `lr` and `skipped_steps` only. Raises NotFiniteError for outputs or a loss that are not
        finite, after five gradients in a row that are not, and for one that overflows at the lowest loss scale, and
        RLCompatError for a sequence that does not fit in memory.
        """

        def compute(matrix: TokenMatrix) -> TokenOutputs:
            return self._outputs(matrix, temperature=temperature, wanted=wanted)

        return self._update(batch, loss=loss, compute=compute)

    def _outputs(self, matrix: TokenMatrix, *, temperature: float, wanted: tuple[Statistic, ...]) -> TokenOutputs:
        statistics = self._split(
            matrix,
            temperature=temperature or 1.0,
            chunk_tokens=self.role.logprob_chunk_tokens,
            wanted=wanted,
        )
        return TokenOutputs(*(None if column is None else matrix.to_columns(column) for column in statistics))  # type: ignore[arg-type]


class ValueEngine(TrainEngine):
    """A value model: the critic."""

    def values(self, batch: Batch) -> Tensor:
        """[B, T] on the CPU: column t is the value of the state before response token t."""
        return self._evaluate(batch, lambda matrix: [self._outputs(matrix)], num_columns=1)[0]

    def update(self, batch: Batch, *, loss: LossFunction[Tensor]) -> dict[str, float]:
        """One optimizer step over the mini-batch. The loss sees the values [b, t] of each micro-batch.

        Returns and raises what `PolicyEngine.update` does.
        """
        return self._update(batch, loss=loss, compute=self._outputs)

    def _outputs(self, matrix: TokenMatrix) -> Tensor:
        return matrix.to_columns(matrix.at_predictors(self.model(matrix.input_ids)))


class RewardEngine(TrainEngine):
    """A frozen reward model, in micro-batches under the plan's token budget."""

    model: RewardNetwork

    def __init__(self, model: RewardNetwork, *, role: RolePlan, pad_token_id: int, ranks: Ranks = Solo()) -> None:
        super().__init__(model, role=role, optimizer=None, ranks=ranks)
        self._pad_token_id = pad_token_id

    def rewards(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """The reward of each sequence of this rank, in order. Sequences must not be empty."""

        def attempt(micro_batches: MicroBatches) -> list[float]:
            rewards: dict[int, float] = {}
            for rows in micro_batches:
                self._running_rows = rows
                computed = self._forward([sequences[row] for row in rows] or [[self._pad_token_id]])
                rewards |= zip(rows, computed, strict=False)
            return [rewards[row] for row in range(len(sequences))]

        return self._within_memory([len(sequence) for sequence in sequences], attempt)

    def _forward(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        input_ids = torch.full((len(sequences), int(lengths.max())), self._pad_token_id)
        for row, sequence in enumerate(sequences):
            input_ids[row, : len(sequence)] = torch.tensor(list(sequence))
        with torch.no_grad(), autocast_for(self.role):
            rewards = self.model(input_ids.to(self.role.device), lengths.to(self.role.device))
        return [float(reward) for reward in rewards.cpu()]
