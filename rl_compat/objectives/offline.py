"""What training on given responses minimizes, and how far it got: losses of one shape for imitation and preferences.

A loss sees one number for each example of a micro-batch: the log-probability of what is learned of it, or the score of
a reward model. It is divided by counts of the whole mini-batch, so that micro-batches add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from rl_compat.data.encode.items import ItemBatch

Shares = Mapping[str, Tensor]
"this micro-batch's part of each metric of the mini-batch: they are summed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Denominators: of a mini-batch, or of all held-out data."""

    num_tokens: int
    "that are learned"
    num_examples: int
    num_preferred: int

    @classmethod
    def of(cls, batch: ItemBatch) -> Self:
        return cls(
            num_tokens=int(batch.response_mask.sum()), num_examples=len(batch), num_preferred=int(batch.preferred.sum())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The loss of a micro-batch, a scalar, and its shares of the metrics, detached."""

    loss: Tensor
    shares: Shares


class Objective(Protocol):
    """One way of learning from given responses."""

    @property
    def compares(self) -> bool:
        """Both responses of a pair must be in one micro-batch."""
        ...

    @property
    def scores(self) -> bool:
        """The model gives a number for a conversation, not probabilities of tokens."""
        ...

    @property
    def needs_reference(self) -> bool: ...

    @property
    def needs_mismatched(self) -> bool:
        """Mismatched responses are needed beside each mini-batch."""
        ...

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None) -> Judged:
        """`values` [b] of the examples of a micro-batch; `mismatched` [n] are log-ratios of the whole mini-batch."""
        ...


def value_of_each(batch: ItemBatch, per_token: Tensor) -> Tensor:
    """[b, t] summed over the tokens that are learned, [b]."""
    return (per_token * batch.response_mask).sum(1)


def sides(batch: ItemBatch) -> tuple[Tensor, Tensor]:
    """The rows of the better and of the worse response of each pair, in one order of pairs, [P] each."""
    order = batch.groups.argsort(stable=True)
    preferred = batch.preferred[order]
    return order[preferred], order[~preferred]


def margins_of(chosen: Tensor, rejected: Tensor, *, num_pairs: int) -> dict[str, Tensor]:
    """Shares of the usual metrics of pairs, from the rewards [P] of both sides."""
    chosen, rejected = chosen.detach(), rejected.detach()
    return {
        "rewards/chosen": chosen.sum() / num_pairs,
        "rewards/rejected": rejected.sum() / num_pairs,
        "rewards/margins": (chosen - rejected).sum() / num_pairs,
        "rewards/accuracies": (chosen > rejected).float().sum() / num_pairs,
    }
