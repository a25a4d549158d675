"""Types that engines and losses exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from rl_compat.batch import Batch

Statistic = Literal["entropy", "sum_pi_squared"]
"optional statistics of a token in addition to its log-probability"


class TokenOutputs(NamedTuple):
    """Statistics of N tokens under a policy, [N] each, or of the response tokens of a batch, [B, T], 0 in the padding.

    None if not requested.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    "of the next-token distribution, in nats"
    sum_pi_squared: Tensor | None = None
    "sum of the squared probabilities of all tokens, without gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Counts over the mini-batch on all ranks, the denominators with which micro-batches and ranks add up to it."""

    num_tokens: int
    "True entries of response_mask"
    num_sequences: int
    "rows with at least one such token"


Outputs = TypeVar("Outputs", contravariant=True)


class LossFunction(Protocol, Generic[Outputs]):
    """The share of a micro-batch in the loss and the metrics of its mini-batch.

    Shares are divided by the totals and summed; of metrics whose name ends in `_max` the largest counts. The
    tensors of the micro-batch and the outputs are on the device of the engine.
    """

    def __call__(
        self, micro_batch: Batch, outputs: Outputs, totals: BatchTotals, /
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]: ...
