"""The algorithms and policy losses by name, with their requirements and settings. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AlgorithmName = Literal[
    "ppo",
    "ppo_lagrangian",
    "grpo",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "grpo_passk",
    "gpg",
    "gdpo",
    "remax",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "sft",
    "dpo",
    "kto",
    "reward_model",
]
PolicyLossName = Literal[
    "ppo_clip",
    "gspo",
    "cispo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "dppo_tv",
    "dppo_kl",
    "reinforce",
]
KLKind = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"]
"an estimator of the KL divergence; a `+` keeps its value and takes the gradient of k2"
Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A default that is a fraction of another setting, rounded to an integer."""

    of: str
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm and its requirements."""

    name: AlgorithmName
    summary: str
    "its advantages, or what it learns, in half a sentence"
    learns_from: Literal["prompts", "supervised", "preference", "labelled"] = "prompts"
    "type of its rows: the model generates responses to prompts; the other types contain their responses"
    needs_critic: bool = False
    needs_groups: bool = False
    "compares the responses of one prompt, so that it needs several"
    needs_greedy_response: bool = False
    "the baseline is the reward of the greedy response to each prompt"
    needs_sum_pi_squared: bool = False
    "needs the sum of the squared probabilities of all tokens at each position"
    needs_reward_parts: bool = False
    "normalizes each part of the reward by itself"
    needs_cost: bool = False
    "has a cost that is kept below a limit, with its own critic"
    compares_with_reference: bool = False
    "its loss uses the log-probabilities of the model before training"
    scores: bool = False
    "trains a model that outputs one number for a conversation"
    reads: tuple[str, ...] = ()
    "settings and groups of `algorithm` that only some algorithms read"
    policy_loss: PolicyLossName = "ppo_clip"
    "what `algorithm.policy_loss=auto` is"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    "settings by dotted key that the name sets, unless they are given; a Share follows another setting"


GAE = ("gamma", "gae_lambda", "whiten_advantages")

ROWS = (
    Algorithm(
        name="ppo",
        summary="generalized advantage estimation with a critic",
        needs_critic=True,
        reads=GAE,
    ),
    Algorithm(
        name="ppo_lagrangian",
        summary="PPO with a cost below a limit: a second critic, and a Lagrange multiplier that rises above the limit",
        needs_critic=True,
        needs_cost=True,
        reads=(*GAE, "lagrangian"),
    ),
    Algorithm(
        name="grpo",
        summary="each reward relative to the mean and standard deviation of its group",
        needs_groups=True,
        reads=("normalize_by_std",),
    ),
    Algorithm(
        name="dr_grpo",
        summary="GRPO without the normalizations by standard deviation and length",
        needs_groups=True,
        reads=("normalize_by_std",),
        defaults={"algorithm.normalize_by_std": False, "algorithm.loss_aggregation": "seq-mean-token-sum-norm"},
    ),
    Algorithm(
        name="dapo",
        summary="GRPO with dynamic sampling, a higher upper clip bound and a penalty for overlong responses",
        needs_groups=True,
        reads=("normalize_by_std",),
        defaults={
            "algorithm.clip_high": 0.28,
            "algorithm.dynamic_sampling": True,
            "algorithm.loss_aggregation": "token-mean",
            "reward.overlong_buffer": Share(of="data.max_response_length", fraction=0.2),
        },
    ),
    Algorithm(
        name="rloo",
        summary="each reward relative to the mean of the other responses of the prompt",
        needs_groups=True,
    ),
    Algorithm(
        name="reinforce_plus_plus",
        summary="discounted rewards, whitened over the batch, without critic or groups",
        reads=("gamma",),
    ),
    Algorithm(
        name="reinforce_plus_plus_baseline",
        summary="each reward relative to the mean of its group, whitened over the batch",
        needs_groups=True,
    ),
    Algorithm(
        name="opo",
        summary="each reward relative to the length-weighted mean of its group",
        needs_groups=True,
    ),
    Algorithm(
        name="grpo_passk",
        summary="only the best response of a group, with its lead over the second best",
        needs_groups=True,
        reads=("normalize_by_std",),
    ),
    Algorithm(
        name="gpg",
        summary="each reward relative to the mean of its group, scaled up if few rewards are nonzero",
        needs_groups=True,
        policy_loss="gpg",
    ),
    Algorithm(
        name="gdpo",
        summary="each part of the reward normalized within its group, then summed and whitened",
        needs_groups=True,
        needs_reward_parts=True,
        reads=("gdpo",),
    ),
    Algorithm(
        name="remax",
        summary="each reward relative to that of the greedy response to the prompt",
        needs_greedy_response=True,
    ),
    Algorithm(
        name="optimal_token_baseline",
        summary="reward-to-go of each token relative to the minimum-variance baseline of its group",
        needs_groups=True,
        needs_sum_pi_squared=True,
    ),
    Algorithm(
        name="tir_optimal_token_baseline",
        summary="optimal_token_baseline with tokens aligned by their position within the response mask",
        needs_groups=True,
        needs_sum_pi_squared=True,
    ),
)

OFFLINE_ROWS = (
    Algorithm(
        name="sft",
        summary="maximum likelihood of the responses in offline data",
        learns_from="supervised",
        defaults={"optimizer.actor_lr": 2e-5},
    ),
    Algorithm(
        name="dpo",
        summary="the chosen of two responses becomes more likely than the rejected one, relative to a reference",
        learns_from="preference",
        compares_with_reference=True,
    ),
    Algorithm(
        name="kto",
        summary="responses labelled as desirable become more likely, others less likely, relative to a reference",
        learns_from="labelled",
        compares_with_reference=True,
    ),
    Algorithm(
        name="reward_model",
        summary="one number for a conversation, higher for the chosen of two responses",
        learns_from="preference",
        scores=True,
        defaults={"optimizer.actor_lr": 1e-5},
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = {row.name: row for row in (*ROWS, *OFFLINE_ROWS)}

CLIP = ("clip_low", "clip_high")

LOSS_READS: Mapping[PolicyLossName, tuple[str, ...]] = {
    "ppo_clip": (*CLIP, "clip_dual"),
    "gspo": CLIP,
    "cispo": CLIP,
    "sapo": ("sapo.tau_positive", "sapo.tau_negative"),
    "gpg": (),
    "clip_cov": (*CLIP, "clip_cov.fraction", "clip_cov.low", "clip_cov.high"),
    "kl_cov": ("kl_cov.fraction", "kl_cov.coef"),
    "geo_mean": CLIP,
    "dro": ("dro.beta",),
    "dppo_tv": (*CLIP, "clip_dual"),
    "dppo_kl": (*CLIP, "clip_dual"),
    "reinforce": (),
}
"settings of `algorithm` that each policy loss uses"


def is_offline(name: str) -> bool:
    """Whether an algorithm learns from offline data instead of generating responses."""
    return ALGORITHMS[name].learns_from != "prompts"


WITHOUT_RATIO: tuple[PolicyLossName, ...] = ("gpg", "reinforce", "dro")
"policy losses without an importance ratio"


def policy_loss_of(name: AlgorithmName, policy_loss: PolicyLossName | Literal["auto"]) -> PolicyLossName:
    """The policy loss of the algorithm `name` if `algorithm.policy_loss` is `policy_loss`."""
    return ALGORITHMS[name].policy_loss if policy_loss == "auto" else policy_loss
