"""The interface of objectives on offline data: a loss and metrics for SFT, preferences and reward models.

A loss gets one number for each example of a micro-batch: the log-probability of its learned tokens, or its score by a
reward model. It is divided by counts of the whole mini-batch, so that micro-batches add up to the loss of the
mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from rl_compat.data.encode.items import ItemBatch

Shares = Mapping[str, Tensor]
"the share of this micro-batch in each metric of the mini-batch; shares are summed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Denominators over a mini-batch or over all held-out data."""

    num_tokens: int
    "number of learned tokens"
    num_examples: int
    num_preferred: int

    @classmethod
    def of(cls, batch: ItemBatch) -> Self:
        return cls(
            num_tokens=int(batch.response_mask.sum()), num_examples=len(batch), num_preferred=int(batch.preferred.sum())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The loss of a micro-batch, a scalar, and its shares in the metrics, detached."""

    loss: Tensor
    shares: Shares


class Objective(Protocol):
    """An objective of training on offline data."""

    @property
    def compares(self) -> bool:
        """Whether both responses of a pair must be in one micro-batch."""
        ...

    @property
    def scores(self) -> bool:
        """Whether the model outputs a score per conversation instead of token probabilities."""
        ...

    @property
    def needs_reference(self) -> bool: ...

    @property
    def needs_mismatched(self) -> bool:
        """Whether each mini-batch comes with mismatched responses."""
        ...

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None) -> Judged:
        """`values` [b] of the examples of a micro-batch; `mismatched` [n] are log-ratios of the whole mini-batch."""
        ...


def value_of_each(batch: ItemBatch, per_token: Tensor) -> Tensor:
    """The sum of [b, t] over learned tokens, [b]."""
    return (per_token * batch.response_mask).sum(1)


def sides(batch: ItemBatch) -> tuple[Tensor, Tensor]:
    """The rows of the chosen and of the rejected response of each pair, in the same order, [P] each."""
    order = batch.groups.argsort(stable=True)
    preferred = batch.preferred[order]
    return order[preferred], order[~preferred]


def margins_of(chosen: Tensor, rejected: Tensor, *, num_pairs: int) -> dict[str, Tensor]:
    """Shares in the usual metrics of pairs, from the rewards [P] of both sides."""
    chosen, rejected = chosen.detach(), rejected.detach()
    return {
        "rewards/chosen": chosen.sum() / num_pairs,
        "rewards/rejected": rejected.sum() / num_pairs,
        "rewards/margins": (chosen - rejected).sum() / num_pairs,
        "rewards/accuracies": (chosen > rejected).float().sum() / num_pairs,
    }
