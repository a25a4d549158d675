"""Correcting a batch for what its sampler did differently: weights for its tokens, and a mask without the worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rl_compat.algorithms.off_policy.importance import importance_weights
from rl_compat.algorithms.off_policy.rejection import rejection_mask
from rl_compat.algorithms.off_policy.rejection_rules import RejectionRule
from rl_compat.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicySettings:
    """How tokens that another policy sampled are learned from."""

    importance: Literal["none", "token", "sequence"] = "none"
    truncate: float | None = None
    band: tuple[float, float] | None = None
    normalize: bool = False
    rules: tuple[RejectionRule, ...] = ()
    bypass: bool = False
    "the sampler's log-probabilities are the old ones, so weights and rejection are those of each update"

    @property
    def corrects(self) -> bool:
        """Whether anything is done to a batch."""
        return self.importance != "none" or bool(self.rules)


class Corrected(NamedTuple):
    batch: Batch
    metrics: dict[str, float]


def correct(batch: Batch, settings: OffPolicySettings) -> Corrected:
    """The batch with `weights` and a `response_mask` without what is rejected, by its `old_logprobs`.

    Weights are those of what is in the mask before the rejection, as in verl.
    """
    assert batch.old_logprobs is not None
    assert batch.rollout_logprobs is not None
    both = {"old_logprobs": batch.old_logprobs, "rollout_logprobs": batch.rollout_logprobs}
    metrics: dict[str, float] = {}
    changes = {}
    if settings.importance != "none":
        importance = importance_weights(
            **both,
            response_mask=batch.response_mask,
            level=settings.importance,
            truncate=settings.truncate,
            band=settings.band,
            normalize=settings.normalize,
        )
        changes["weights"] = importance.weights
        metrics |= importance.metrics
    if settings.rules:
        rejection = rejection_mask(**both, response_mask=batch.response_mask, rules=settings.rules)
        changes["response_mask"] = rejection.mask
        metrics |= rejection.metrics
    return Corrected(batch.with_(**changes), metrics)
