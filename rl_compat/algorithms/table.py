"""The algorithms and policy losses by name: what each needs, sets and reads. No tensors: planning reads it too."""

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
    """A whole number that is a fraction of another setting."""

    of: str
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of the table."""

    name: AlgorithmName
    summary: str
    "where its advantages come from, or what it learns, in half a sentence"
    learns_from: Literal["prompts", "supervised", "preference", "labelled"] = "prompts"
    "its rows: prompts are answered by the model itself and rewarded; the others come with their responses"
    needs_critic: bool = False
    needs_groups: bool = False
    "compares the responses of one prompt, so it needs several of each"
    needs_greedy_response: bool = False
    "the reward of the most likely response to each prompt is its baseline"
    needs_sum_pi_squared: bool = False
    "the sum of the squared probabilities of all tokens at each position"
    needs_reward_parts: bool = False
    "compares the parts of the reward one by one"
    needs_cost: bool = False
    "a cost beside the reward, held below a limit, with a critic of its own"
    compares_with_reference: bool = False
    "its loss has the log-probabilities of the model before training"
    scores: bool = False
    "trains a model with one number for a conversation in place of the output over the vocabulary"
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
        summary="PPO with a second critic for a cost, whose price rises while it is above its limit",
        needs_critic=True,
        needs_cost=True,
        reads=(*GAE, "lagrangian"),
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
        name="dapo",
        summary="GRPO without prompts that teach nothing, with a wider upper clip and a penalty for overlong responses",
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
    Algorithm(
        name="gdpo",
        summary="every part of the reward against its group by itself, then summed and whitened",
        needs_groups=True,
        needs_reward_parts=True,
        reads=("gdpo",),
    ),
    Algorithm(
        name="remax",
        summary="each reward against that of the greedy response to the prompt",
        needs_greedy_response=True,
    ),
    Algorithm(
        name="optimal_token_baseline",
        summary="reward-to-go of each token against the baseline of least variance in its group",
        needs_groups=True,
        needs_sum_pi_squared=True,
    ),
    Algorithm(
        name="tir_optimal_token_baseline",
        summary="the same with tokens matched by their number among the trained ones",
        needs_groups=True,
        needs_sum_pi_squared=True,
    ),
)

OFFLINE_ROWS = (
    Algorithm(
        name="sft",
        summary="responses are imitated, token by token",
        learns_from="supervised",
        defaults={"optimizer.actor_lr": 2e-5},
    ),
    Algorithm(
        name="dpo",
        summary="the better of two responses becomes more likely than the worse, against a reference",
        learns_from="preference",
        compares_with_reference=True,
    ),
    Algorithm(
        name="kto",
        summary="responses that were called good become more likely, others less, against a reference",
        learns_from="labelled",
        compares_with_reference=True,
    ),
    Algorithm(
        name="reward_model",
        summary="one number for a conversation, higher for the better of two",
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
"policy loss to the settings of `algorithm` that change something in it"


def is_offline(name: str) -> bool:
    """Whether an algorithm learns from responses that are there, without generating any."""
    return ALGORITHMS[name].learns_from != "prompts"


WITHOUT_RATIO: tuple[PolicyLossName, ...] = ("gpg", "reinforce", "dro")
"policy losses without a factor that corrects for who sampled"


def policy_loss_of(name: AlgorithmName, policy_loss: PolicyLossName | Literal["auto"]) -> PolicyLossName:
    """The policy loss of the algorithm `name` where `algorithm.policy_loss` is `policy_loss`."""
    return ALGORITHMS[name].policy_loss if policy_loss == "auto" else policy_loss
