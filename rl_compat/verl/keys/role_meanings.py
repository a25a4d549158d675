"""Rules for role keys of verl whose meaning depends on another key or whose unit differs."""

from __future__ import annotations

from typing import Any

from rl_compat.errors import quoted
from rl_compat.verl.keys.rules import DTYPES, Given, Outcome, Rule, honoured, no_effect, refused, renamed, translated

ACTOR = "actor_rollout_ref.actor"
ONE_MICRO_BATCH = "all roles and phases share one micro-batch size: the smallest one given"


def micro_batch_size(key: str, value: Any, given: Given) -> Outcome:
    """The micro-batch size: sequences per device."""
    role = key.rpartition(".")[0]
    if value is None:
        return no_effect("null leaves the size to the planner")
    if uses_dynamic_batches(role, given):
        return no_effect("`use_dynamic_bsz` limits micro-batches by tokens")
    return translated({"plan.micro_batch_size": value}, ONE_MICRO_BATCH)


def global_micro_batch_size(key: str, value: Any, given: Given) -> Outcome:
    """The deprecated micro-batch size over all devices."""
    devices = int(given.get("trainer.n_gpus_per_node", "plan.num_devices")) * int(given.get("trainer.nnodes") or 1)
    if value is None:
        return no_effect("null leaves the size to the planner")
    if not isinstance(value, int) or value % devices:
        return refused(f"{value} sequences cannot be divided among {devices} devices")
    return micro_batch_size(key, value // devices, given)


def token_budget(key: str, value: Any, given: Given) -> Outcome:
    """The token budget of a micro-batch per device."""
    if not uses_dynamic_batches(key.rpartition(".")[0], given):
        return no_effect("`use_dynamic_bsz` is not true; set `plan.max_tokens_per_micro_batch` to cap tokens too")
    parts = given.get(f"{key.rpartition('.')[0]}.ulysses_sequence_parallel_size") or 1
    reason = "all roles share one token budget: the smallest one given"
    if parts > 1:
        reason = f"{value} tokens on each of {parts} devices that share a sequence"
    return translated({"plan.max_tokens_per_micro_batch": value * parts}, reason)


def dynamic_batches(key: str, value: Any, given: Given) -> Outcome:
    """Whether micro-batches are filled by tokens."""
    if not value:
        return no_effect("micro-batches are filled up to `plan.micro_batch_size`")
    return no_effect("micro-batches are always filled by tokens; without a budget the planner sets one")


def uses_dynamic_batches(role: str, given: Given) -> bool:
    """Whether a role fills micro-batches by tokens: its own switch, or the actor's."""
    own = (f"{role}.use_dynamic_bsz", f"{role}.log_prob_use_dynamic_bsz", f"{ACTOR}.use_dynamic_bsz")
    return bool(next((given.values[name] for name in own if name in given.values), False))


def warmup_steps(key: str, value: Any, given: Given) -> Outcome:
    """The warm-up: steps of the loop in verl, optimizer steps here."""
    if value is None or value <= 0:
        return no_effect("no warm-up, unless `lr_warmup_steps_ratio` sets one")
    factor = optimizer_steps_per_step(given)
    return translated({"optimizer.warmup_steps": value * factor}, f"{factor} optimizer steps in each step of the loop")


def warmup_ratio(key: str, value: Any, given: Given) -> Outcome:
    """The warm-up as a fraction of all steps."""
    steps = given.get(f"{key.rpartition('.')[0]}.lr_warmup_steps")
    if not value:
        return no_effect("no warm-up")
    if steps is not None and steps > 0:
        return no_effect("`lr_warmup_steps` is given")
    total = given.get("trainer.total_training_steps", "trainer.num_steps")
    if total is None:
        return refused("the number of steps is unknown; give `lr_warmup_steps`, or `trainer.total_training_steps` too")
    warm = int(value * total) * optimizer_steps_per_step(given)
    return translated({"optimizer.warmup_steps": warm}, f"{value} of {total} steps, in optimizer steps")


def optimizer_steps_per_step(given: Given) -> int:
    """Optimizer steps per step of the loop."""
    batch = given.get("data.train_batch_size", "trainer.batch_size")
    mini = given.get(f"{ACTOR}.ppo_mini_batch_size", "trainer.mini_batch_size")
    return max(1, int(batch) // int(mini)) * int(given.get(f"{ACTOR}.ppo_epochs", "algorithm.num_epochs"))


def grad_clip(key: str, value: Any, given: Given) -> Outcome:
    """`grad_clip`, which verl documents but does not read."""
    if any(name.endswith("optim.clip_grad") for name in given.values):
        return no_effect("`optim.clip_grad` is given")
    return translated({"optimizer.max_grad_norm": value}, "verl itself reads only `optim.clip_grad`")


def offload(*native_keys: str) -> Rule:
    """A switch of one role that is shared by all roles here."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        return translated(dict.fromkeys(native_keys, value), "one switch for all roles")

    return rule


def attention(key: str, value: Any, given: Given) -> Outcome:
    known = ("eager", "sdpa", "flash_attention_2")
    if value not in known:
        return refused(f"only {quoted(known)} exist here")
    return honoured("plan.attention", value)


def targets(key: str, value: Any, given: Given) -> Outcome:
    return no_effect("null leaves our default") if value is None else honoured("model.lora_targets", value)


def storage_dtype(key: str, value: Any, given: Given) -> Outcome:
    """The dtype in which weights are loaded."""
    if DTYPES.get(value) == "fp32":
        return no_effect("trained weights are always kept in fp32")
    return no_effect(
        "trained weights are always kept in fp32; `plan.compute_dtype` sets the dtype of products", warn=True
    )


def compute_dtype(reason: str) -> Rule:
    return renamed("plan.compute_dtype", DTYPES, reason=reason)
