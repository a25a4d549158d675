"""The losses of actor and critic over one micro-batch, divided by counts of the whole mini-batch.

The batch and the outputs of the engine are on one device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from torch import Tensor

from rl_compat.algorithms.kl import kl_estimate
from rl_compat.algorithms.losses.policy import POLICY_LOSSES, aggregate
from rl_compat.algorithms.losses.types import PolicyLossInputs, PolicyLossNumbers
from rl_compat.algorithms.losses.value import value_loss
from rl_compat.algorithms.masking import masked_sum
from rl_compat.algorithms.off_policy.importance import mismatch_metrics
from rl_compat.algorithms.table import LOSS_READS, Aggregation, PolicyLossName, policy_loss_of
from rl_compat.batch import Batch
from rl_compat.config.types import AlgorithmConfig
from rl_compat.training.types import BatchTotals, TokenOutputs

MEANS_OVER_TOKENS = ("rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/chi2_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The settings of the losses of actor and critic."""

    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    width: int | None = None
    "divisor of seq-mean-token-sum-norm: the maximum response length"

    @property
    def policy_loss(self) -> PolicyLossName:
        """The name of the actor's loss."""
        return policy_loss_of(self.algorithm.name, self.algorithm.policy_loss)

    @property
    def numbers(self) -> PolicyLossNumbers:
        """The numbers in the formulas of the policy losses."""
        keys = {key for read in LOSS_READS.values() for key in read}
        return PolicyLossNumbers(**{key.replace(".", "_"): attrgetter(key)(self.algorithm) for key in keys})

    def aggregation(self, own: Aggregation) -> Aggregation:
        """How token losses are averaged; `own` is the meaning of `auto`."""
        chosen = self.algorithm.loss_aggregation
        return own if chosen == "auto" else chosen


def policy_loss(
    batch: Batch, outputs: TokenOutputs, totals: BatchTotals, settings: LossSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """The surrogate loss, minus the entropy bonus, plus the KL to the reference: a scalar, and its parts.

    A batch without `old_logprobs` is used for one optimizer step, in which the current policy is the old one.
    """
    mask = batch.response_mask
    inputs = policy_loss_inputs(batch, outputs.logprobs, settings)
    algorithm, rule = settings.algorithm, POLICY_LOSSES[settings.policy_loss]
    mode = settings.aggregation(rule.aggregation)

    def total(per_token: Tensor) -> Tensor:
        return aggregate(
            per_token,
            mask=mask,
            mode=mode,
            num_tokens=totals.num_tokens,
            num_sequences=totals.num_sequences,
            width=settings.width,
        )

    surrogate = rule.loss(inputs)
    loss = pg_loss = total(surrogate.losses)
    num_tokens = max(1, totals.num_tokens)
    metrics = {
        "actor/pg_loss": pg_loss.detach(),
        "actor/pg_clipfrac": surrogate.num_clipped / num_tokens,
        "actor/pg_clipfrac_lower": surrogate.num_clipped_lower / num_tokens,
        "actor/ppo_kl": surrogate.sum_kl / num_tokens,
    }
    if batch.old_logprobs is None and batch.rollout_logprobs is not None:
        metrics |= _mismatch_shares(batch, inputs.old_logprobs, totals)
    if outputs.entropy is not None:
        metrics["actor/entropy"] = masked_sum(outputs.entropy.detach(), mask=mask) / num_tokens
    if outputs.entropy is not None and algorithm.entropy_coef != 0.0:
        entropy = total(outputs.entropy)
        loss = loss - algorithm.entropy_coef * entropy
        metrics["actor/entropy_loss"] = entropy.detach()
    if algorithm.kl_loss != "none":
        assert batch.ref_logprobs is not None
        kl = total(kl_estimate(algorithm.kl_loss, logprobs=outputs.logprobs, ref_logprobs=batch.ref_logprobs))
        loss = loss + algorithm.kl_loss_coef * kl
        metrics["actor/kl_loss"] = kl.detach()
    metrics["actor/loss"] = loss.detach()
    return loss, metrics


def _mismatch_shares(batch: Batch, logprobs: Tensor, totals: BatchTotals) -> dict[str, Tensor]:
    """The mismatch with the rollout's log-probabilities in this micro-batch.

    Its shares in those `mismatch_metrics` that are means over tokens or responses.
    """
    assert batch.rollout_logprobs is not None
    mask = batch.response_mask
    found = mismatch_metrics(old_logprobs=logprobs, rollout_logprobs=batch.rollout_logprobs, response_mask=mask)
    tokens, rows = mask.sum() / max(1, totals.num_tokens), mask.any(1).sum() / max(1, totals.num_sequences)
    gaps = {
        "logprobs": (logprobs - batch.rollout_logprobs).abs() * mask,
        "probs": (logprobs.exp() - batch.rollout_logprobs.exp()).abs() * mask,
    }
    metrics = {}
    for name, gap in gaps.items():
        metrics[f"training/rollout_{name}_diff_mean"] = gap.sum() / max(1, totals.num_tokens)
        metrics[f"training/rollout_{name}_diff_max"] = gap.max()
    return metrics | {
        name: value * (tokens if name in MEANS_OVER_TOKENS else rows)
        for name, value in found.items()
        if not name.endswith(("_max", "_min"))
    }


def policy_loss_inputs(batch: Batch, logprobs: Tensor, settings: LossSettings) -> PolicyLossInputs:
    """The inputs of the surrogate, with `logprobs` [B, T] of the current policy."""
    assert batch.advantages is not None
    return PolicyLossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs,
        advantages=batch.advantages,
        response_mask=batch.response_mask,
        weights=batch.weights,
        selection=batch.selection,
        numbers=settings.numbers,
    )


def critic_loss(
    batch: Batch, values: Tensor, totals: BatchTotals, settings: LossSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped squared error of the values against the returns: a scalar, and its parts."""
    assert batch.values is not None
    assert batch.returns is not None
    mask = batch.response_mask
    error = value_loss(
        values=values,
        old_values=batch.values,
        returns=batch.returns,
        response_mask=mask,
        clip_value=settings.algorithm.clip_value,
    )
    loss = aggregate(
        error.losses,
        mask=mask,
        mode=settings.aggregation("token-mean"),
        num_tokens=totals.num_tokens,
        num_sequences=totals.num_sequences,
        width=settings.width,
    )
    num_tokens = max(1, totals.num_tokens)
    return loss, {
        "vf_loss": loss.detach(),
        "vf_clipfrac": error.num_clipped / num_tokens,
        "vpred_mean": (values.detach() * mask).sum() / num_tokens,
    }
