"""verl's keys of rewards: custom functions, managers, the penalty for overlong responses, and reward models."""

from __future__ import annotations

from typing import Any

from rl_compat.verl.keys.rules import Given, Outcome, no_effect, refused, translated

FUNCTIONS = ("reward.custom_reward_function", "custom_reward_function")
MANAGERS = ("naive", "dapo", "gdpo", "prime")
MODELS = {"reward.reward_model": "model_path", "reward_model": "model.path"}
"the switch of a reward model, and its path"


def custom_reward(key: str, value: Any, given: Given) -> Outcome:
    """A function in a file: `path` and `name` together."""
    section = key.rpartition(".")[0]
    path, name = given.get(f"{section}.path"), given.get(f"{section}.name") or "compute_score"
    if path is None:
        return no_effect("`path` is not given" if value is not None else "null keeps the built-in functions")
    return translated({"reward.functions": (f"{path}:{name}",)}, "file and function in one")


def reward_argument(key: str, value: Any, given: Given) -> Outcome:
    """A keyword argument of the custom function."""
    given_arguments = value if isinstance(value, dict) else {key.rpartition(".")[2]: value}
    arguments = {
        str(name): str(item).lower() if isinstance(item, bool) else str(item) for name, item in given_arguments.items()
    }
    return translated({"reward.function_arguments": arguments}, "an argument of the function, as text")


def overlong(key: str, value: Any, given: Given) -> Outcome:
    """A part of `overlong_buffer`: `enable`, `len`, `penalty_factor` or `log`."""
    section, _, name = key.rpartition(".")
    if name == "enable" and not value:
        return translated({"reward.overlong_buffer": 0}, "no penalty")
    if not given.get(f"{section}.enable"):
        return no_effect(f"`{section}.enable` is not true")
    keys = ("reward.reward_manager.name", "reward_manager.name", "reward_model.reward_manager")
    if "dapo" not in [given.get(key) for key in keys]:
        hint = "set `reward.reward_manager.name=dapo`, or `reward.overlong_buffer`"
        return no_effect(f"as in verl, only the manager `dapo` reads it; {hint}", warn=True)
    length = given.get(f"{section}.len")
    if name == "log":
        return no_effect("the penalty is in the metrics")
    if name == "penalty_factor":
        return translated({"reward.overlong_penalty": value}, "the maximum penalty")
    if length is None:
        return refused("the buffer has no length", hint=f"give `{section}.len`")
    return translated({"reward.overlong_buffer": length}, "tokens over which the penalty grows")


def longest_response(key: str, value: Any, given: Given) -> Outcome:
    """`max_resp_len`, where the penalty ends; here it is the maximum response length."""
    longest = given.get("data.max_response_length", "data.max_response_length")
    if value in (None, longest):
        return no_effect("the penalty ends at `data.max_response_length`")
    return refused(f"the penalty ends at `data.max_response_length`, {longest} tokens")


def reward_model(key: str, value: Any, given: Given) -> Outcome:
    """The switch or the path of a reward model, which is then the only reward."""
    section = next(section for section in MODELS if key.startswith(f"{section}."))
    path_key = f"{section}.{MODELS[section]}"
    path = given.get(path_key)
    if not given.get(f"{section}.enable"):
        return no_effect("no reward model" if key.endswith("enable") else f"`{section}.enable` is not true")
    if any(given.get(f"{function}.path") for function in FUNCTIONS):
        hint = "set `reward.functions`, `reward.model` and their weights"
        return refused("verl's function calls a reward server, which does not exist here", hint=hint)
    if path is None:
        return refused("the model has no path", hint=f"give `{path_key}`")
    native = {"reward.model": path, "reward.functions": ()}
    return translated(native, "the model is the only reward and runs in this process")


def resource_pool(key: str, value: Any, given: Given) -> Outcome:
    """The devices of a reward model: the switch, the GPUs of each node, or the nodes."""
    section, _, name = key.rpartition(".")
    if not (given.get(f"{section}.enable") and given.get(f"{section}.enable_resource_pool")):
        return no_effect(f"`{section}.enable` and `{section}.enable_resource_pool` are not both true")
    if name == "enable_resource_pool":
        return translated({"pools.reward.roles": ("reward",)}, "the reward model has devices of its own")
    native = {"n_gpus_per_node": "pools.reward.num_devices", "nnodes": "pools.reward.num_nodes"}[name]
    return translated({native: value}, "of the reward model")
