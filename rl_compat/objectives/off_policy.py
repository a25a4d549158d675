"""Off-policy correction of a batch: importance weights, and a mask without rejected tokens."""

from __future__ import annotations

from typing import NamedTuple

from rl_compat.algorithms.off_policy.importance import importance_weights
from rl_compat.algorithms.off_policy.rejection import rejection_mask
from rl_compat.algorithms.off_policy.rejection_rules import parse_rejection_rules
from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig


class Corrected(NamedTuple):
    batch: Batch
    metrics: dict[str, float]


def corrects(config: OffPolicyConfig) -> bool:
    """Whether the settings correct a batch."""
    return config.importance != "none" or bool(config.reject)


def correct(batch: Batch, settings: OffPolicyConfig) -> Corrected:
    """The batch with `weights` and a `response_mask` without rejected tokens, from its `old_logprobs`.

    Weights are computed with the mask before rejection, as in verl.
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
    if settings.reject:
        rejection = rejection_mask(
            **both, response_mask=batch.response_mask, rules=parse_rejection_rules(settings.reject)
        )
        changes["response_mask"] = rejection.mask
        metrics |= rejection.metrics
    return Corrected(batch.with_(**changes), metrics)
