"""The training engines of the roles: a policy computes log-probabilities, a critic computes values."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from rl_compat.batch import Batch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.planning.types import RolePlan
from rl_compat.training.base import TrainEngine
from rl_compat.training.chunked_logprobs import Statistic
from rl_compat.training.layout import Layout
from rl_compat.training.micro_batches import TokenMatrix
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.output_head import SplitModel
from rl_compat.training.precision import autocast_for
from rl_compat.training.types import BatchTotals, LossFunction, TokenOutputs

__all__ = [
    "BatchTotals",
    "LossFunction",
    "OptimizerSettings",
    "PolicyEngine",
    "TokenOutputs",
    "TrainEngine",
    "ValueEngine",
]


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
        super().__init__(model, role=role, optimizer=optimizer, layout=layout, ranks=ranks)
        self._split = SplitModel(model)
        with autocast_for(role):
            self._split.check(model, role.device)
            if layout.pack_tokens is not None and not self._split.keeps_packed_rows_apart(role.device):
                self.layout = replace(layout, pack_tokens=None)
                self.notes.append(
                    f"`{type(model).__name__}` attends across the rows of a pack: rows are padded instead"
                )

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
        skipped step returns `lr` and `skipped_steps` only. Raises RLCompatError after five gradients in a row that are
        not finite, for one that overflows at the lowest loss scale, and for a sequence that does not fit in memory.
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
        logprobs, entropy, squares = (None if column is None else matrix.to_columns(column) for column in statistics)
        assert logprobs is not None
        return TokenOutputs(logprobs=logprobs, entropy=entropy, sum_pi_squared=squares)


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
