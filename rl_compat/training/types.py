"""What engines and losses hand each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from rl_compat.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutputs:
    """What a policy says about each response token, [B, T], 0 in the padding."""

    logprobs: Tensor
    entropy: Tensor | None = None
    "of the next-token distribution, in nats; None when it was not asked for"
    sum_pi_squared: Tensor | None = None
    "of the next-token distribution, without gradient; None when it was not asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Counts over the whole mini-batch: the denominators that make micro-batches add up to it."""

    num_tokens: int
    "True entries of response_mask"
    num_sequences: int
    "rows with at least one of them"


Outputs = TypeVar("Outputs", contravariant=True)


class LossFunction(Protocol, Generic[Outputs]):
    """A micro-batch's share of the mini-batch's loss, and its share of the metrics: both are summed. Of metrics whose
    name ends in `_max` the largest counts.

    The micro-batch's tensors and the outputs are on the engine's device. Divide by the totals.
    """

    def __call__(
        self, micro_batch: Batch, outputs: Outputs, totals: BatchTotals, /
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]: ...
