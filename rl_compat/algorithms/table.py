"""The algorithms by name: what each needs, sets and reads. Without tensors, so that planning can read it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of the table."""

    name: str
    summary: str
    "where its advantages come from, in half a sentence"
    needs_critic: bool = False
    needs_groups: bool = False
    "compares the responses of one prompt, so it needs several of each"
    reads: tuple[str, ...] = ()
    "fields of `algorithm` that only some estimators read"
    policy_loss: str = "ppo_clip"
    "what `algorithm.policy_loss=auto` is"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    "settings by dotted key that the name sets, unless they are given"


GAE = ("gamma", "gae_lambda", "whiten_advantages")

ROWS = (
    Algorithm(
        name="ppo",
        summary="generalized advantage estimation with a critic",
        needs_critic=True,
        reads=GAE,
    ),
    Algorithm(
        name="grpo",
        summary="each reward against the mean and spread of its group",
        needs_groups=True,
        reads=("normalize_by_std",),
    ),
    Algorithm(
        name="dr_grpo",
        summary="GRPO without the two divisions that favour some prompts and lengths",
        needs_groups=True,
        reads=("normalize_by_std",),
        defaults={"algorithm.normalize_by_std": False, "algorithm.loss_aggregation": "seq-mean-token-sum-norm"},
    ),
    Algorithm(
        name="rloo",
        summary="each reward against the mean of the other responses",
        needs_groups=True,
    ),
    Algorithm(
        name="reinforce_plus_plus",
        summary="discounted rewards, whitened over the batch, without critic or groups",
        reads=("gamma",),
    ),
    Algorithm(
        name="reinforce_plus_plus_baseline",
        summary="each reward against the mean of its group, whitened over the batch",
        needs_groups=True,
    ),
    Algorithm(
        name="opo",
        summary="each reward against the mean of its group weighted by length",
        needs_groups=True,
    ),
    Algorithm(
        name="grpo_passk",
        summary="only the best response of a group learns, by its lead over the second best",
        needs_groups=True,
        reads=("normalize_by_std",),
    ),
    Algorithm(
        name="gpg",
        summary="each reward against the mean of its group, scaled up when few rewards are not 0",
        needs_groups=True,
        policy_loss="gpg",
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = {row.name: row for row in ROWS}

CLIP = ("clip_low", "clip_high")

LOSS_READS: Mapping[str, tuple[str, ...]] = {
    "ppo_clip": (*CLIP, "clip_dual"),
    "gspo": CLIP,
    "cispo": CLIP,
    "sapo": ("sapo_tau_positive", "sapo_tau_negative"),
    "gpg": (),
    "clip_cov": (*CLIP, "clip_cov_fraction", "clip_cov_low", "clip_cov_high"),
    "kl_cov": ("kl_cov_fraction", "kl_cov_coef"),
    "geo_mean": CLIP,
    "dro": ("dro_beta",),
    "dppo_tv": (*CLIP, "clip_dual"),
    "dppo_kl": (*CLIP, "clip_dual"),
    "reinforce": (),
}
"policy loss to the fields of `algorithm` that change something in it"


def policy_loss_of(name: str, policy_loss: str) -> str:
    """The policy loss of the algorithm `name` where `algorithm.policy_loss` is `policy_loss`."""
    return ALGORITHMS[name].policy_loss if policy_loss == "auto" else policy_loss
