"""Preference objectives: DPO and its variants, KTO, and reward models."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rl_compat.algorithms.losses.preference import bradley_terry_loss, dpo_loss, kto_loss, kto_reference_point
from rl_compat.config.types import DPOConfig, KTOConfig
from rl_compat.data.encode.items import ItemBatch
from rl_compat.objectives.offline import Counts, Judged, margins_of, sides


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOObjective:
    """DPO and its variants."""

    config: DPOConfig = field(default_factory=DPOConfig)
    compares: bool = True
    scores: bool = False
    needs_mismatched: bool = False

    @property
    def needs_reference(self) -> bool:
        return not self.config.reference_free

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None = None) -> Judged:
        """The mean over pairs. Rewards are beta times the log-ratios to the reference."""
        del mismatched
        chosen, rejected = sides(batch)
        reference, lengths = batch.reference, batch.response_mask.sum(1)
        num_pairs = counts.num_preferred
        found = dpo_loss(
            chosen_logprobs=values[chosen],
            rejected_logprobs=values[rejected],
            ref_chosen_logprobs=None if reference is None else reference[chosen],
            ref_rejected_logprobs=None if reference is None else reference[rejected],
            beta=self.config.beta,
            loss=self.config.loss,
            label_smoothing=self.config.label_smoothing if self.config.loss == "sigmoid" else 0.0,
            chosen_lengths=lengths[chosen] if self.config.length_normalized else None,
            rejected_lengths=lengths[rejected] if self.config.length_normalized else None,
        )
        loss = found.losses.sum() / num_pairs
        shares = {
            "loss": loss.detach(),
            **margins_of(found.chosen_rewards, found.rejected_rewards, num_pairs=num_pairs),
            "logps/chosen": values[chosen].detach().sum() / num_pairs,
            "logps/rejected": values[rejected].detach().sum() / num_pairs,
        }
        return Judged(loss=loss, shares=shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class KTOObjective:
    """KTO."""

    config: KTOConfig = field(default_factory=KTOConfig)
    compares: bool = False
    scores: bool = False
    needs_reference: bool = True
    needs_mismatched: bool = True

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None = None) -> Judged:
        """The mean over responses, against the log-ratio of mismatched ones."""
        assert batch.reference is not None
        assert mismatched is not None
        point = kto_reference_point(mismatched_logprobs=mismatched, mismatched_ref_logprobs=None)
        found = kto_loss(
            logprobs=values,
            ref_logprobs=batch.reference,
            desirable=batch.preferred,
            reference_point=point,
            beta=self.config.beta,
            desirable_weight=self.config.desirable_weight,
            undesirable_weight=self.config.undesirable_weight,
        )
        loss = found.losses.sum() / counts.num_examples
        share = len(batch) / counts.num_examples
        shares = {"loss": loss.detach(), "kl": point * share}
        good, bad = counts.num_preferred, counts.num_examples - counts.num_preferred
        if good:
            shares["rewards/chosen"] = found.rewards[batch.preferred].sum() / good
        if bad:
            shares["rewards/rejected"] = found.rewards[~batch.preferred].sum() / bad
        if good and bad:
            shares["rewards/margins"] = shares["rewards/chosen"] - shares["rewards/rejected"]
        return Judged(loss=loss, shares=shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelObjective:
    """A reward model, by Bradley and Terry."""

    compares: bool = True
    scores: bool = True
    needs_reference: bool = False
    needs_mismatched: bool = False

    def judge(self, batch: ItemBatch, values: Tensor, counts: Counts, *, mismatched: Tensor | None = None) -> Judged:
        """The mean over pairs. The chosen response should lead by the margin of the pair."""
        del mismatched
        chosen, rejected = sides(batch)
        num_pairs = counts.num_preferred
        losses = bradley_terry_loss(
            chosen_rewards=values[chosen], rejected_rewards=values[rejected], margins=batch.margins[chosen]
        )
        loss = losses.sum() / num_pairs
        return Judged(
            loss=loss,
            shares={"loss": loss.detach(), **margins_of(values[chosen], values[rejected], num_pairs=num_pairs)},
        )
