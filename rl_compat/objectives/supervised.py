"""SFTObjective: the negative log-likelihood of the responses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rl_compat.data.encode.items import ItemBatch
from rl_compat.objectives.offline import Counts, Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTObjective:
    """Minus the mean log-probability of the learned tokens."""

    compares: bool = False
    scores: bool = False
    needs_reference: bool = False
    needs_mismatched: bool = False

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None = None) -> Judged:
        """Every token of the mini-batch has the same weight, whatever the length of its response."""
        del batch, mismatched
        loss = -values.sum() / counts.num_tokens
        return Judged(loss=loss, shares={"loss": loss.detach()})
