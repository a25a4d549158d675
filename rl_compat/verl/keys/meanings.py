"""Rules for verl's keys of data, rollout, trainer and roles that depend on another key or differ in their unit."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from rl_compat.verl.keys.rules import Given, Outcome, Rule, honoured, no_effect, refused, translated

ACTOR = "actor_rollout_ref.actor"
ONE_MICRO_BATCH = "all roles and phases share one micro-batch size: the smallest one given"


def config_name(key: str, value: Any, given: Given) -> Outcome:
    """A configuration that ships with verl."""
    own = PurePath(str(value)).name.removesuffix(".yaml")
    return no_effect("verl's own configuration; its defaults that differ are listed", warn=own != "ppo_trainer")


def filter_overlong(key: str, value: Any, given: Given) -> Outcome:
    """Whether long prompts are dropped; otherwise `truncation` applies."""
    if value:
        return translated({"data.overlong_prompts": "filter"}, "longer prompts are dropped")
    kind = given.get("data.truncation") or "error"
    return translated({"data.overlong_prompts": kind}, "`truncation` decides about longer prompts")


def truncation(key: str, value: Any, given: Given) -> Outcome:
    """The treatment of long prompts that are not dropped."""
    if given.get("data.filter_overlong_prompts"):
        return no_effect("`filter_overlong_prompts` drops longer prompts first")
    return honoured("data.overlong_prompts", value, "verl documents it but ignores it")


def rollout_engine(key: str, value: Any, given: Given) -> Outcome:
    """The engine, which verl requires; here the planner picks one that the card can run."""
    if value == "hf":
        return translated({"rollout.engine": "transformers"}, "the `generate` of transformers")
    if value not in ("vllm", "sglang", "trtllm"):
        return refused("the engines are `auto`, `native`, `transformers` and `vllm`; set `rollout.engine`")
    reason = "verl must name an engine; here the planner chooses the fastest, and `rollout.engine` overrides it"
    return translated({"rollout.engine": "auto"}, reason, warn=value != "vllm")


def validation_temperature(key: str, value: Any, given: Given) -> Outcome:
    """A sampling setting of validation, unless validation is greedy."""
    if given.get("actor_rollout_ref.rollout.val_kwargs.do_sample") is False:
        return no_effect("`val_kwargs.do_sample=false` is greedy")
    return honoured("trainer.validation_temperature", value)


def validation_sampling(key: str, value: Any, given: Given) -> Outcome:
    """Greedy validation is temperature 0."""
    if not value:
        return translated({"trainer.validation_temperature": 0.0}, "greedy")
    if given.get("actor_rollout_ref.rollout.val_kwargs.temperature") is not None:
        return no_effect("`val_kwargs.temperature` sets it")
    return no_effect("without `val_kwargs.temperature` validation stays greedy", warn=True)


def critic_warmup(key: str, value: Any, given: Given) -> Outcome:
    """In verl the first step in which the actor learns; here the number of steps before it."""
    steps = max(value - 1, 0)
    return translated({"algorithm.critic_warmup_steps": steps}, f"verl's actor learns from step {max(value, 1)} on")


def resume_mode(key: str, value: Any, given: Given) -> Outcome:
    """Whether a run continues, and from which checkpoint."""
    if value == "resume_path":
        path = given.get("trainer.resume_from_path")
        return translated({"trainer.resume": path}, "that checkpoint") if path else refused("its path is missing")
    names = {"auto": "auto", "disable": "never"}
    if value not in names:
        return refused("only `auto`, `disable` and `resume_path` exist")
    reason = "the newest complete checkpoint, or none" if value == "auto" else "a new run"
    return translated({"trainer.resume": names[value]}, reason)


def resume_path(key: str, value: Any, given: Given) -> Outcome:
    """A key that only `resume_mode=resume_path` reads."""
    if value is not None and given.get("trainer.resume_mode") == "resume_path":
        return honoured("trainer.resume", value)
    return no_effect("only `trainer.resume_mode=resume_path` reads it", warn=value is not None)


def only_newest_checkpoint(key: str, value: Any, given: Given) -> Outcome:
    """A key that verl reads without declaring it."""
    if not value:
        return no_effect("`max_actor_ckpt_to_keep` decides")
    return translated({"trainer.keep_checkpoints": 1}, "only the newest checkpoint is kept")


def loggers(key: str, value: Any, given: Given) -> Outcome:
    """Trackers; verl's `file` is JSON lines."""
    names = [value] if isinstance(value, str) else list(value or [])
    native = tuple("jsonl" if name == "file" else name for name in names)
    if native == tuple(names):
        return honoured("trainer.loggers", native)
    return translated({"trainer.loggers": native}, "`file` is `jsonl` here")


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
    devices = num_devices(given)
    if value is None:
        return no_effect("null leaves the size to the planner")
    if not isinstance(value, int) or value % devices:
        return refused(f"{value} sequences cannot be divided among {devices} devices")
    return micro_batch_size(key, value // devices, given)


def fsdp_size(key: str, value: Any, given: Given) -> Outcome:
    """The number of devices that share the weights of a role."""
    devices = num_devices(given)
    if value is None or value < 1:
        return no_effect("the planner shards weights where whole copies do not fit; see `plan.num_shards`")
    if devices == 1:
        return no_effect("one device holds whole tensors")
    if value < devices and devices % value:
        return refused(f"{devices} devices cannot be divided into groups of {value}")
    return translated({"plan.num_shards": min(value, devices)}, "one number for all roles of a pool")


def num_devices(given: Given) -> int:
    """The devices of all machines."""
    nodes = int(given.get("trainer.nnodes", "plan.num_nodes"))
    return int(given.get("trainer.n_gpus_per_node", "plan.num_devices")) * nodes


def token_budget(key: str, value: Any, given: Given) -> Outcome:
    """The token budget of a micro-batch per device."""
    if not uses_dynamic_batches(key.rpartition(".")[0], given):
        return no_effect("`use_dynamic_bsz` is not true; set `plan.max_tokens_per_micro_batch` to cap tokens too")
    parts = given.get(f"{key.rpartition('.')[0]}.ulysses_sequence_parallel_size") or 1
    reason = "all roles share one token budget: the smallest one given"
    if parts > 1:
        reason = f"{value} tokens on each of {parts} devices that share a sequence"
    return translated({"plan.max_tokens_per_micro_batch": value * parts}, reason)


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
