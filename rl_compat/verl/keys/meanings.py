"""Rules for verl's keys of data, rollout, algorithm, reward and trainer that are more than renamed."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from rl_compat.verl.keys.rules import Given, Outcome, Rule, honoured, no_effect, refused, translated


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


def sample_limit(native_key: str) -> Rule:
    """A maximum number of rows; negative means all."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None or value < 0:
            return translated({native_key: None}, "all rows")
        return honoured(native_key, value)

    return rule


def interval(native_key: str) -> Rule:
    """A number of steps between events; verl's -1 is our 0."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None or value < 0:
            return translated({native_key: 0}, "only at the end")
        return honoured(native_key, value)

    return rule


def top_k(key: str, value: Any, given: Given) -> Outcome:
    """`top_k`: verl's -1, all tokens, is our 0."""
    return translated({"rollout.top_k": 0}, "all tokens") if value == -1 else honoured("rollout.top_k", value)


def rollout_engine(key: str, value: Any, given: Given) -> Outcome:
    """The engine, which verl requires; here the planner picks one that the card can run."""
    if value == "hf":
        return translated({"rollout.engine": "transformers"}, "the `generate` of transformers")
    if value not in ("vllm", "sglang", "trtllm"):
        return refused("the engines are `auto`, `native`, `transformers` and `vllm`; set `rollout.engine`")
    reason = "verl must name an engine; here the planner chooses the fastest, and `rollout.engine` overrides it"
    return translated({"rollout.engine": "auto"}, reason, warn=value != "vllm")


def disable_logprobs(key: str, value: Any, given: Given) -> Outcome:
    """A key of a widely copied command that no release of verl has."""
    reason = "not a key of verl; the log-probability of each sampled token is always recorded, at no cost"
    return no_effect(reason, warn=True)


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


def num_devices(key: str, value: Any, given: Given) -> Outcome:
    """The number of devices of all machines."""
    per_node, nodes = int(given.get("trainer.n_gpus_per_node") or 1), int(given.get("trainer.nnodes") or 1)
    reason = f"{per_node} in each of {nodes}" if nodes > 1 else "devices of the run"
    return translated({"plan.num_devices": per_node * nodes}, reason)


def critic_warmup(key: str, value: Any, given: Given) -> Outcome:
    """In verl the first step in which the actor learns; here the number of steps before it."""
    steps = max(value - 1, 0)
    return translated({"algorithm.critic_warmup_steps": steps}, f"verl's actor learns from step {max(value, 1)} on")


def resume_mode(key: str, value: Any, given: Given) -> Outcome:
    """Whether a run continues, and from which checkpoint."""
    if value == "resume_path":
        path = given.get("trainer.resume_from_path")
        return (
            translated({"trainer.resume": path}, "that checkpoint")
            if path
            else refused("`resume_from_path` is missing")
        )
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


def loggers(key: str, value: Any, given: Given) -> Outcome:
    """Trackers; verl's `file` is JSON lines."""
    names = [value] if isinstance(value, str) else list(value or [])
    native = tuple("jsonl" if name == "file" else name for name in names)
    if native == tuple(names):
        return honoured("trainer.loggers", native)
    return translated({"trainer.loggers": native}, "`file` is `jsonl` here")
