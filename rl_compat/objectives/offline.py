"""Objectives on offline data: a loss and metrics for SFT, preferences (DPO, KTO) and reward models.

A loss gets one number for each example of a micro-batch: the log-probability of its learned tokens, or its score by a
reward model. It is divided by counts of the whole mini-batch, so that micro-batches add up to the loss of the
mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

from torch import Tensor

from rl_compat.algorithms.losses.preference import bradley_terry_loss, dpo_loss, kto_loss, kto_reference_point
from rl_compat.config.types import AlgorithmConfig, DPOConfig, KTOConfig
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


class Judge(Protocol):
    """The loss of a micro-batch."""

    def __call__(
        self, batch: ItemBatch, values: Tensor, counts: Counts, /, *, mismatched: Tensor | None = None
    ) -> Judged:
        """`values` [b] of the examples of a micro-batch; `mismatched` [n] are log-ratios of the whole mini-batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """An objective of training on offline data."""

    judge: Judge
    compares: bool = False
    "both responses of a pair must be in one micro-batch"
    scores: bool = False
    "the model outputs a score per conversation instead of token probabilities"
    needs_reference: bool = False
    needs_mismatched: bool = False
    "each mini-batch comes with mismatched responses"


def objective_of(algorithm: AlgorithmConfig) -> Objective:
    """The objective of an algorithm that learns from offline data."""
    dpo, kto = algorithm.dpo, algorithm.kto
    objectives = {
        "sft": Objective(judge=judge_sft),
        "dpo": Objective(judge=partial(judge_dpo, config=dpo), compares=True, needs_reference=not dpo.reference_free),
        "kto": Objective(judge=partial(judge_kto, config=kto), needs_reference=True, needs_mismatched=True),
        "reward_model": Objective(judge=judge_reward_model, compares=True, scores=True),
    }
    return objectives[algorithm.name]


def value_of_each(batch: ItemBatch, per_token: Tensor) -> Tensor:
    """The sum of [b, t] over learned tokens, [b]."""
    return (per_token * batch.response_mask).sum(1)


def judge_sft(batch: ItemBatch, values: Tensor, counts: Counts, /, *, mismatched: Tensor | None = None) -> Judged:
    """Minus the mean log-probability of the learned tokens.

    Every token of the mini-batch has the same weight, whatever the length of its response.
    """
    del batch, mismatched
    loss = -values.sum() / counts.num_tokens
    return Judged(loss=loss, shares={"loss": loss.detach()})


def judge_dpo(
    batch: ItemBatch, values: Tensor, counts: Counts, /, *, config: DPOConfig, mismatched: Tensor | None = None
) -> Judged:
    """DPO and its variants: the mean over pairs. Rewards are beta times the log-ratios to the reference."""
    del mismatched
    chosen, rejected = _sides(batch)
    reference, lengths = batch.reference, batch.response_mask.sum(1)
    found = dpo_loss(
        chosen_logprobs=values[chosen],
        rejected_logprobs=values[rejected],
        ref_chosen_logprobs=None if reference is None else reference[chosen],
        ref_rejected_logprobs=None if reference is None else reference[rejected],
        beta=config.beta,
        loss=config.loss,
        label_smoothing=config.label_smoothing if config.loss == "sigmoid" else 0.0,
        chosen_lengths=lengths[chosen] if config.length_normalized else None,
        rejected_lengths=lengths[rejected] if config.length_normalized else None,
    )
    logps = {name: values[rows].detach().sum() for name, rows in (("chosen", chosen), ("rejected", rejected))}
    shares = {f"logps/{name}": total / counts.num_preferred for name, total in logps.items()}
    return _of_pairs(found.losses, found.chosen_rewards, found.rejected_rewards, counts, shares)


def judge_kto(
    batch: ItemBatch, values: Tensor, counts: Counts, /, *, config: KTOConfig, mismatched: Tensor | None = None
) -> Judged:
    """KTO: the mean over responses, against the log-ratio of mismatched ones."""
    assert batch.reference is not None
    assert mismatched is not None
    point = kto_reference_point(mismatched)
    found = kto_loss(
        logprobs=values,
        ref_logprobs=batch.reference,
        desirable=batch.preferred,
        reference_point=point,
        beta=config.beta,
        desirable_weight=config.desirable_weight,
        undesirable_weight=config.undesirable_weight,
    )
    loss = found.losses.sum() / counts.num_examples
    shares = {"loss": loss.detach(), "kl": point * len(batch) / counts.num_examples}
    good, bad = counts.num_preferred, counts.num_examples - counts.num_preferred
    if good:
        shares["rewards/chosen"] = found.rewards[batch.preferred].sum() / good
    if bad:
        shares["rewards/rejected"] = found.rewards[~batch.preferred].sum() / bad
    if good and bad:
        shares["rewards/margins"] = shares["rewards/chosen"] - shares["rewards/rejected"]
    return Judged(loss=loss, shares=shares)


def judge_reward_model(
    batch: ItemBatch, values: Tensor, counts: Counts, /, *, mismatched: Tensor | None = None
) -> Judged:
    """A reward model, by Bradley and Terry: the mean over pairs. The chosen response should lead by their margin."""
    del mismatched
    chosen, rejected = _sides(batch)
    losses = bradley_terry_loss(
        chosen_rewards=values[chosen], rejected_rewards=values[rejected], margins=batch.margins[chosen]
    )
    return _of_pairs(losses, values[chosen], values[rejected], counts, {})


def _sides(batch: ItemBatch) -> tuple[Tensor, Tensor]:
    """The rows of the chosen and of the rejected response of each pair, in the same order, [P] each."""
    order = batch.groups.argsort(stable=True)
    preferred = batch.preferred[order]
    return order[preferred], order[~preferred]


def _of_pairs(losses: Tensor, chosen: Tensor, rejected: Tensor, counts: Counts, shares: Shares) -> Judged:
    """The mean loss over pairs, with `shares` and those in the usual metrics of the rewards [P] of both sides."""
    chosen, rejected, num_pairs = chosen.detach(), rejected.detach(), counts.num_preferred
    loss = losses.sum() / num_pairs
    metrics = {
        "loss": loss.detach(),
        "rewards/chosen": chosen.sum() / num_pairs,
        "rewards/rejected": rejected.sum() / num_pairs,
        "rewards/margins": (chosen - rejected).sum() / num_pairs,
        "rewards/accuracies": (chosen > rejected).float().sum() / num_pairs,
    }
    return Judged(loss=loss, shares=metrics | dict(shares))
