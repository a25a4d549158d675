"""Which roles a run has, and the pools that they may work on."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.report import Problem
from rl_compat.config.settings import POOLS
from rl_compat.config.types import DevicesConfig, PlacedRole, PoolConfig, RunConfig
from rl_compat.errors import quoted

MAIN_POOL = "main"
"the pool that the section `plan` describes"


def roles_of(config: RunConfig) -> dict[PlacedRole, str]:
    """Every role, with the reason why the run lacks it; an empty text if it has the role."""
    algorithm, adapted = config.algorithm, config.model.lora_rank > 0
    row, name = ALGORITHMS[algorithm.name], f"`algorithm.name={algorithm.name}`"
    compares = algorithm.kl_in_reward != "none" or algorithm.kl_loss != "none"
    no_generation = f"{name} generates nothing" if is_offline(algorithm.name) else ""
    no_critic = "" if row.needs_critic else f"{name} has no critic"
    no_cost = "" if row.needs_cost else f"{name} has no cost"
    no_reference = "" if compares else "there is no KL term"
    shared_reference = "under LoRA it is the actor's frozen base" if adapted else ""
    return {
        "actor": "",
        "rollout": no_generation,
        "critic": no_critic,
        "cost_critic": no_critic or no_cost,
        "reference": no_generation or no_reference or shared_reference,
        "reward": no_generation or ("" if config.reward.model else "it has no reward model"),
        "cost": no_cost or ("" if config.cost.model else "it has no cost model"),
    }


def rollout_has_pool(config: RunConfig) -> bool:
    """Whether the rollout works on a pool of its own, with weights of its own."""
    return any("rollout" in pool.roles and "actor" not in pool.roles for pool in config.pools.values())


def rollout_goes_on(config: RunConfig) -> bool:
    """Whether unfinished responses can go on with new weights: on a pool of its own, or on the actor's one device."""
    return rollout_has_pool(config) or config.plan.num_devices * config.plan.num_nodes == 1


def pools(config: RunConfig) -> Iterator[Problem]:
    """Every pool has roles that the run has, and no role or GPU is in two pools."""
    lacking = roles_of(config)
    owners: dict[str, str] = {}
    for name, pool in config.pools.items():
        section = f"{POOLS}.{name}"
        if name == MAIN_POOL:
            yield Problem(
                key=f"{section}.roles",
                message=f"`{section}` is the pool of the section [plan]",
                hint="set its devices in [plan]; it has the roles that no other pool names",
            )
        if not pool.roles:
            found = quoted(role for role, why in lacking.items() if not why)
            yield Problem(
                key=f"{section}.roles", message=f"the pool `{name}` has no roles", hint=f"the roles are {found}"
            )
        for role in pool.roles:
            if lacking[role]:
                yield Problem(
                    key=f"{section}.roles",
                    message=f"the pool `{name}` has the role `{role}` and the run does not: {lacking[role]}",
                    hint=f"remove `{role}` from `{section}.roles`",
                )
        owned = [f"`{role}`" for role in pool.roles] + [f"GPU {index}" for index in pool.gpus]
        for item in owned:
            other = owners.setdefault(item, name)
            if other != name:
                yield Problem(
                    key=f"{section}.{'gpus' if item.startswith('GPU') else 'roles'}",
                    message=f"{item} is in the pools `{other}` and `{name}`",
                    hint="name it in one of them",
                )
        yield from _devices(name, pool)


def _devices(name: str, pool: PoolConfig) -> Iterator[Problem]:
    """The settings for the devices of a pool agree."""
    section = f"{POOLS}.{name}"
    if pool.gpus and pool.num_devices not in (1, len(pool.gpus)):
        yield Problem(
            key=f"{section}.num_devices",
            message=f"`{section}.num_devices` is {pool.num_devices} and `{section}.gpus` has {len(pool.gpus)} GPUs",
            hint="set one of them",
        )
    for key, value in (("gpus", pool.gpus), ("emulate", pool.emulate)):
        if value and pool.device == "cpu":
            yield Problem(
                key=f"{section}.{key}",
                message=f"`{section}.{key}` is for GPUs and `{section}.device` is `cpu`",
                hint="set one of them",
            )


def engines(config: RunConfig) -> Iterator[Problem]:
    """The devices of an engine divide those of a node of the rollout's pool, and the engine is vLLM."""
    width, engine = config.rollout.tensor_parallel, config.rollout.engine
    if width < 2:
        return
    if engine not in ("auto", "vllm"):
        yield Problem(
            key="rollout.tensor_parallel",
            message=f"`rollout.tensor_parallel` is {width}, and `rollout.engine={engine}` has a model on each device",
            hint="set `rollout.engine=vllm`, or `rollout.tensor_parallel=1`",
        )
    named = {role: f"{POOLS}.{name}" for name, pool in config.pools.items() for role in pool.roles}
    section = named.get("rollout", named.get("actor", "plan"))
    pool: DevicesConfig = config.plan if section == "plan" else config.pools[section.removeprefix(f"{POOLS}.")]
    number = len(pool.gpus) if isinstance(pool, PoolConfig) and pool.gpus else pool.num_devices
    if number >= 1 and number % width:
        possible = [str(count) for count in range(1, number + 1) if number % count == 0]
        yield Problem(
            key="rollout.tensor_parallel",
            message=f"`rollout.tensor_parallel` is {width} and `{section}.num_devices` is {number}",
            hint=f"the first divides the second: set `rollout.tensor_parallel` to {' or '.join(possible)}",
        )


def shards(config: RunConfig) -> Iterator[Problem]:
    """Shards divide the devices of their pool, and devices that compute together those of a node and the shards."""
    for section, pool in {"plan": config.plan, **{f"{POOLS}.{key}": one for key, one in config.pools.items()}}.items():
        gpus = len(pool.gpus) if isinstance(pool, PoolConfig) else 0
        devices = (gpus or pool.num_devices) * pool.num_nodes
        if isinstance(pool.num_shards, int) and pool.num_shards >= 1 and devices % pool.num_shards:
            possible = quoted(str(count) for count in range(1, devices + 1) if devices % count == 0)
            yield Problem(
                key=f"{section}.num_shards",
                message=f"`{section}.num_shards` is {pool.num_shards} and the pool has {devices} devices "
                f"(`{section}.num_devices` x `{section}.num_nodes`)",
                hint=f"use {possible}",
            )
        for number, what in ((gpus or pool.num_devices, "num_devices"), (pool.num_shards, "num_shards")):
            if isinstance(number, int) and pool.tensor_parallel >= 1 and number % pool.tensor_parallel:
                yield Problem(
                    key=f"{section}.tensor_parallel",
                    message=f"`{section}.tensor_parallel` is {pool.tensor_parallel} and `{section}.{what}` is {number}",
                    hint="the first divides the second",
                )
