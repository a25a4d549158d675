"""verl's keys of rollout correction: importance weights, rejection, and bypass mode."""

from __future__ import annotations

from typing import Any

from rl_compat.verl.keys.rules import Given, Outcome, no_effect, refused, translated

CORRECTION = "algorithm.rollout_correction"
LEVELS = ("token", "sequence")
OLD_REJECTIONS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"names until verl 0.7.0, with bounds on the ratio itself"
LOSS_TYPES = ("ppo_clip", "reinforce")
NOT_GIVEN = "`rollout_is` is not given"


def importance(key: str, value: Any, given: Given) -> Outcome:
    """`rollout_is`: importance weights per token or per response."""
    if value is None:
        return translated({"off_policy.importance": "none"}, "no weights")
    if value not in LEVELS:
        return refused("the weights are `token` or `sequence`")
    if is_bypassing(given) and bypass_loss(given) == "ppo_clip":
        return no_effect("as in verl, the clipped ratio under `bypass_mode` is already relative to the rollout policy")
    if given.get(f"{CORRECTION}.rollout_is_threshold") is not None:
        return translated({"off_policy.importance": value}, "bounded by `rollout_is_threshold`")
    return translated({"off_policy.importance": value, "off_policy.truncate": 2.0}, "at most 2, verl's default")


def importance_bound(key: str, value: Any, given: Given) -> Outcome:
    """`rollout_is_threshold`: an upper bound, or `low_high`, outside of which weights are 0."""
    if not _has_weights(given):
        return no_effect(NOT_GIVEN)
    if value is None:
        return translated({"off_policy.truncate": None}, "weights are not bounded")
    numbers = [float(part) for part in given.texts[key].strip(" \"'").split("_")]
    if len(numbers) == 2:
        misread = not isinstance(value, str)
        reason = f"weights outside are 0; without quotes Hydra reads {value}" if misread else "weights outside are 0"
        return translated({"off_policy.band": tuple(numbers)}, reason, warn=misread)
    return translated({"off_policy.truncate": numbers[0]}, "weights are truncated to it")


def normalize(key: str, value: Any, given: Given) -> Outcome:
    """`rollout_is_batch_normalize`."""
    return translated({"off_policy.normalize": value}, "by the mean") if _has_weights(given) else no_effect(NOT_GIVEN)


def rejection(key: str, value: Any, given: Given) -> Outcome:
    """`rollout_rs`: one or more rules, each with its bounds from `rollout_rs_threshold`."""
    if value is None:
        return translated({"off_policy.reject": ()}, "nothing is rejected")
    names = list(dict.fromkeys(value if isinstance(value, list) else str(value).replace(" ", "").split(",")))
    bounds = _rejection_bounds(given)
    if not bounds:
        return refused("`rollout_rs_threshold` is missing", hint=f"give `{CORRECTION}.rollout_rs_threshold`")
    if len(bounds) not in (1, len(names)):
        return refused(f"{len(names)} rules have {len(bounds)} thresholds in `rollout_rs_threshold`")
    if len(bounds) == 1:
        bounds = bounds * len(names)
    rules = tuple(_rule(name, bound, given) for name, bound in zip(names, bounds, strict=True))
    old = any(name in OLD_REJECTIONS for name in names)
    reason = "its older names had bounds on the ratio, which is inverted here" if old else "with their thresholds"
    return translated({"off_policy.reject": rules}, reason)


def rejection_bound(key: str, value: Any, given: Given) -> Outcome:
    """`rollout_rs_threshold` and, of older releases, `rollout_rs_threshold_lower`."""
    if given.get(f"{CORRECTION}.rollout_rs") is None:
        return no_effect("`rollout_rs` is not given")
    if value is None:
        return no_effect("`rollout_rs_threshold` is the bound")
    outcome = rejection(f"{CORRECTION}.rollout_rs", given.get(f"{CORRECTION}.rollout_rs"), given)
    return outcome if outcome.verdict == "refused" else translated(outcome.native, "the bounds of `rollout_rs`")


def bypass(key: str, value: Any, given: Given) -> Outcome:
    """`bypass_mode`: use the rollout's log-probabilities as the old ones, with a separate loss."""
    if not value:
        return translated({"off_policy.bypass": False}, "the trainer computes the old log-probabilities")
    loss = bypass_loss(given)
    if loss not in LOSS_TYPES:
        return refused(f"its `loss_type` is `{loss}`, and only `ppo_clip` and `reinforce` exist")
    native = {"off_policy.bypass": True, "algorithm.policy_loss": loss}
    return translated(native, "the rollout's log-probabilities serve as the old ones")


def loss_type(key: str, value: Any, given: Given) -> Outcome:
    """`loss_type`, and `use_policy_gradient` of older releases."""
    return bypass(key, True, given) if is_bypassing(given) else no_effect("only `bypass_mode` reads it")


def ratio_cap(key: str, value: Any, given: Given) -> Outcome:
    """`actor.tis_imp_ratio_cap` of 2025: truncated weights per token."""
    if value is None or value <= 0:
        return no_effect("off")
    return translated({"off_policy.importance": "token", "off_policy.truncate": value}, "weights are truncated to it")


def is_bypassing(given: Given) -> bool:
    """Whether the rollout's log-probabilities serve as the old ones."""
    named = given.get("actor_rollout_ref.actor.policy_loss.loss_mode") == "bypass_mode"
    return named or bool(given.get(f"{CORRECTION}.bypass_mode"))


def bypass_loss(given: Given) -> str:
    """The loss under `bypass_mode`."""
    if given.get(f"{CORRECTION}.use_policy_gradient"):
        return "reinforce"
    return str(given.get(f"{CORRECTION}.loss_type") or "ppo_clip")


def _has_weights(given: Given) -> bool:
    clipped = is_bypassing(given) and bypass_loss(given) == "ppo_clip"
    return given.get(f"{CORRECTION}.rollout_is") is not None and not clipped


def _rejection_bounds(given: Given) -> list[str]:
    """The bounds as text, one per rule or one for all."""
    value = given.get(f"{CORRECTION}.rollout_rs_threshold")
    if value is None:
        old = given.get(f"{CORRECTION}.rollout_rs") in OLD_REJECTIONS
        return [str(given.get(f"{CORRECTION}.rollout_is_threshold") or 2.0)] if old else []
    return [part.strip(" \"'[]") for part in given.texts[f"{CORRECTION}.rollout_rs_threshold"].split(",")]


def _rule(name: str, bound: str, given: Given) -> str:
    if name not in OLD_REJECTIONS:
        return f"{name}:{bound}"
    high = float(bound)
    low = float(given.get(f"{CORRECTION}.rollout_rs_threshold_lower") or 1 / high)
    return f"{OLD_REJECTIONS[name]}:{1 / high:.8g}_{1 / low:.8g}"
