"""verl's keys of advantage estimators, policy losses, KL terms and group filters."""

from __future__ import annotations

from typing import Any

from rl_compat.errors import quoted
from rl_compat.verl.keys.correction import bypass, is_bypassing
from rl_compat.verl.keys.rules import Given, Outcome, honoured, kl_term, no_effect, refused, translated

ACTOR = "actor_rollout_ref.actor"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"

SAME_NAMES = (
    *("grpo", "grpo_passk", "gdpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo"),
    *("gpg", "optimal_token_baseline", "tir_optimal_token_baseline"),
)
ESTIMATORS = {
    "gae": "ppo",
    **{name: name for name in SAME_NAMES},
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}
LOSS_NAMES = ("dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo")
LOSSES = {"vanilla": "ppo_clip", **{name: name for name in LOSS_NAMES}}
OWN_AGGREGATION = {"sapo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean"}
"losses that verl averages in their own way, independently of `loss_agg_mode`"
UNLIMITED_ROUNDS = 1_000_000
WHOLE_REWARD = (None, "reward", "score", "seq_reward", "seq_final_reward")


def estimator(key: str, value: Any, given: Given) -> Outcome:
    """The advantage estimator, which is the algorithm here."""
    if value not in ESTIMATORS:
        return refused(f"the advantage estimators are {quoted(ESTIMATORS)}")
    name = ESTIMATORS[value]
    if name == "gpg" and not given.get(LOSS_MODE):
        native = {"algorithm.name": name, "algorithm.policy_loss": "ppo_clip"}
        return translated(native, "verl uses the clipped loss unless `policy_loss.loss_mode=gpg`", warn=True)
    if name == value:
        return honoured("algorithm.name", value)
    reason = "PPO is the algorithm with this estimator and a critic" if value == "gae" else "the same numbers"
    return translated({"algorithm.name": name}, reason)


def loss_mode(key: str, value: Any, given: Given) -> Outcome:
    """The policy loss."""
    if value == "bypass_mode":
        return bypass(key, True, given)
    if value not in LOSSES:
        return refused(f"the policy losses are {quoted((*LOSSES, 'bypass_mode'))}")
    if is_bypassing(given):
        return no_effect("as in verl, `rollout_correction.bypass_mode` uses its `loss_type`", warn=value != "vanilla")
    if value == "dro" and given.get(f"{ACTOR}.policy_loss.dro_beta") is None:
        return refused("verl's `dro` needs a number above 0", hint=f"give `{ACTOR}.policy_loss.dro_beta=0.1`")
    if LOSSES[value] == value:
        return honoured("algorithm.policy_loss", value)
    return translated({"algorithm.policy_loss": LOSSES[value]}, "the clipped loss of PPO")


def loss_aggregation(key: str, value: Any, given: Given) -> Outcome:
    """The aggregation of token losses, unless the policy loss has its own."""
    mode = given.get(LOSS_MODE)
    own = None if is_bypassing(given) else OWN_AGGREGATION.get(str(mode))
    if mode == "gspo":
        return honoured("algorithm.loss_aggregation", value, "verl reads it from 0.9.1 on; before, `gspo` had its own")
    if own is None:
        return honoured("algorithm.loss_aggregation", value)
    if own == value:
        return honoured("algorithm.loss_aggregation", value, f"`{mode}` always uses it")
    reason = f"as in verl, `{mode}` averages over each response first; `algorithm.loss_aggregation` overrides it"
    return no_effect(reason, warn=True)


def use_kl_in_reward(key: str, value: Any, given: Given) -> Outcome:
    """A KL penalty in the reward, with the estimator of `kl_penalty`, without `+`, since a reward has no gradient."""
    kind = str(given.get("algorithm.kl_penalty") or "kl").removesuffix("+")
    return kl_term("algorithm.kl_in_reward", kind if given.get("algorithm.use_kl_in_reward") else "none")


def use_kl_loss(key: str, value: Any, given: Given) -> Outcome:
    """A KL term in the loss, with the estimator of `kl_loss_type`."""
    kind = given.get(f"{ACTOR}.kl_loss_type") or "low_var_kl"
    return kl_term("algorithm.kl_loss", kind if given.get(f"{ACTOR}.use_kl_loss") else "none")


def clip_ratio(key: str, value: Any, given: Given) -> Outcome:
    """Both clip bounds, except the one given by its own key."""
    native = {
        f"algorithm.clip_{side}": value for side in ("low", "high") if f"{ACTOR}.clip_ratio_{side}" not in given.values
    }
    if not native:
        return no_effect("`clip_ratio_low` and `clip_ratio_high` are given")
    return translated(native, "verl itself ignores it, since its bounds have defaults of their own")


def clip_ratio_low(key: str, value: Any, given: Given) -> Outcome:
    """The lower clip range of the ratio; above 1, as some commands for CISPO have it, there is no bound."""
    if value is None:
        return no_effect("null keeps our default")
    if value > 1 and given.get(LOSS_MODE) not in ("geo_mean", "dppo_kl"):
        return translated({"algorithm.clip_low": 1.0}, "a ratio is never below 0, so 1 has the same effect")
    return honoured("algorithm.clip_low", value)


def filter_rounds(key: str, value: Any, given: Given) -> Outcome:
    """Maximum sampling rounds of a step; verl then stops the run, and here the step uses the prompts it has."""
    if value <= 0:
        return translated({"algorithm.max_sampling_rounds": UNLIMITED_ROUNDS}, "practically unlimited")
    return translated({"algorithm.max_sampling_rounds": value}, "then a step learns from the prompts that it has")
