"""Rules for verl's keys of data, rollout, algorithm, reward and trainer that mean more than another name."""

from __future__ import annotations

from typing import Any

from rl_compat.config.verl_rules import (
    Given,
    Outcome,
    Rule,
    honoured,
    kl_term,
    no_effect,
    refused,
    translated,
)


def estimator(key: str, value: Any, given: Given) -> Outcome:
    """The advantage estimator, which names the algorithm here."""
    names = {"gae": "ppo", "grpo": "grpo"}
    if value not in names:
        return refused(f"the advantage estimators are {' and '.join(f'`{name}`' for name in names)}")
    if names[value] == value:
        return honoured("algorithm.name", value)
    return translated({"algorithm.name": names[value]}, "PPO is the algorithm with this estimator and a critic")


def use_kl_in_reward(key: str, value: Any, given: Given) -> Outcome:
    """A KL penalty in the reward, with the estimator of `kl_penalty`."""
    kind = str(given.get("algorithm.kl_penalty") or "kl").removesuffix("+")
    return kl_term("algorithm.kl_in_reward", kind if value else "none")


def kl_penalty(key: str, value: Any, given: Given) -> Outcome:
    """The estimator of the KL penalty."""
    if given.get("algorithm.use_kl_in_reward"):
        return use_kl_in_reward(key, True, given)
    return _no_kl_in_reward()


def kl_control(native_key: str) -> Rule:
    """A number of the KL controller, which only a penalty in the reward reads."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        return honoured(native_key, value) if given.get("algorithm.use_kl_in_reward") else _no_kl_in_reward()

    return rule


def _no_kl_in_reward() -> Outcome:
    reason = "as in verl, only a KL in the reward reads it; add `algorithm.use_kl_in_reward=true` for one"
    return no_effect(reason, warn=True)


def filter_overlong(key: str, value: Any, given: Given) -> Outcome:
    """Dropping long prompts; otherwise `truncation` says what happens to them."""
    if value:
        return translated({"data.overlong_prompts": "filter"}, "longer prompts are dropped")
    kind = given.get("data.truncation") or "error"
    return translated({"data.overlong_prompts": kind}, "`truncation` says what happens to longer prompts")


def truncation(key: str, value: Any, given: Given) -> Outcome:
    """What happens to long prompts that are not dropped."""
    if given.get("data.filter_overlong_prompts"):
        return no_effect("`filter_overlong_prompts` drops longer prompts first")
    return honoured("data.overlong_prompts", value, "verl itself documents it and ignores it")


def sample_limit(native_key: str) -> Rule:
    """At most so many rows; a negative number is all."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None or value < 0:
            return translated({native_key: None}, "all rows")
        return honoured(native_key, value)

    return rule


def interval(native_key: str) -> Rule:
    """Every so many steps; verl's -1 is our 0."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None or value < 0:
            return translated({native_key: 0}, "only at the end")
        return honoured(native_key, value)

    return rule


def top_k(key: str, value: Any, given: Given) -> Outcome:
    """verl's -1 is our 0: all tokens."""
    return translated({"rollout.top_k": 0}, "all tokens") if value == -1 else honoured("rollout.top_k", value)


def rollout_engine(key: str, value: Any, given: Given) -> Outcome:
    """verl must be given an engine; here the planner picks one that the card can run."""
    if value == "hf":
        return translated({"rollout.engine": "transformers"}, "the `generate` of transformers")
    if value not in ("vllm", "sglang", "trtllm"):
        return refused("the engines are `auto`, `native`, `transformers` and `vllm`; set `rollout.engine`")
    reason = "verl must name an engine; the planner picks one that works here, `rollout.engine` insists on one"
    return translated({"rollout.engine": "auto"}, reason, warn=value != "vllm")


def validation_temperature(key: str, value: Any, given: Given) -> Outcome:
    """Of validation, unless it is greedy."""
    if given.get("actor_rollout_ref.rollout.val_kwargs.do_sample") is False:
        return no_effect("`val_kwargs.do_sample=false` is greedy")
    return honoured("trainer.validation_temperature", value)


def validation_sampling(key: str, value: Any, given: Given) -> Outcome:
    """Greedy validation is temperature 0."""
    if not value:
        return translated({"trainer.validation_temperature": 0.0}, "greedy")
    if given.get("actor_rollout_ref.rollout.val_kwargs.temperature") is not None:
        return no_effect("`val_kwargs.temperature` says how")
    return no_effect("without `val_kwargs.temperature` validation stays greedy", warn=True)


def num_devices(key: str, value: Any, given: Given) -> Outcome:
    """Devices of all machines together."""
    per_node, nodes = int(given.get("trainer.n_gpus_per_node") or 1), int(given.get("trainer.nnodes") or 1)
    reason = f"{per_node} in each of {nodes}" if nodes > 1 else "devices of the run"
    return translated({"plan.num_devices": per_node * nodes}, reason)


def critic_warmup(key: str, value: Any, given: Given) -> Outcome:
    """verl lets the actor learn in the step that the number names; here it is the steps without the actor."""
    steps = max(value - 1, 0)
    return translated({"algorithm.critic_warmup_steps": steps}, f"verl's actor learns from step {max(value, 1)} on")


def resume_mode(key: str, value: Any, given: Given) -> Outcome:
    """Whether to continue a run, and from where."""
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
    return translated(
        {"trainer.resume": names[value]}, "the newest complete checkpoint, or none" if value == "auto" else ""
    )


def resume_path(key: str, value: Any, given: Given) -> Outcome:
    """Read by `resume_mode=resume_path` only."""
    if value is not None and given.get("trainer.resume_mode") == "resume_path":
        return honoured("trainer.resume", value)
    return no_effect("only `trainer.resume_mode=resume_path` reads it", warn=value is not None)


def loggers(key: str, value: Any, given: Given) -> Outcome:
    """Trackers, `file` being JSON lines."""
    names = [value] if isinstance(value, str) else list(value or [])
    native = tuple("jsonl" if name == "file" else name for name in names)
    if native == tuple(names):
        return honoured("trainer.loggers", native)
    return translated({"trainer.loggers": native}, "`file` is `jsonl` here")


def custom_reward(section: str) -> Rule:
    """A function in a file: `path` and `name` together."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        path, name = given.get(f"{section}.path"), given.get(f"{section}.name") or "compute_score"
        if path is None:
            return no_effect("there is no `path`" if value is not None else "null keeps the built-in scorers")
        return translated({"reward.functions": (f"{path}:{name}",)}, "file and function in one")

    return rule


def reward_argument(key: str, value: Any, given: Given) -> Outcome:
    """A keyword argument of the custom function."""
    name = key.rpartition(".")[2]
    if isinstance(value, dict):
        arguments = {str(key): _as_text(item) for key, item in value.items()}
    else:
        arguments = {name: _as_text(value)}
    return translated({"reward.function_arguments": arguments}, "an argument of the function, as text")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
