"""One plan for all roles of a Python program."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.load import load_values
from rl_compat.config.report import warnings_of
from rl_compat.config.types import RunConfig
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError
from rl_compat.hardware.types import Hardware
from rl_compat.models.files.folder import ALL_PARTS
from rl_compat.models.files.registry import ModelSource, resolve_model
from rl_compat.models.tokenizer import TokenizerBundle, load_tokenizer
from rl_compat.planning.fit import assembled, solve_pools
from rl_compat.planning.pools import PoolRequest
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.measurements import own_measurements
from rl_compat.planning.types import TRAINED_ROLES, Plan, RoleName
from rl_compat.planning.workload import Requests, Workload, shared_workload
from rl_compat.workers.setup import WITHOUT_TOKENIZER, Planned, applied_here, check_adapters, check_vocabulary

logger = logging.getLogger("rl_compat")

ORDER: tuple[RoleName, ...] = ("actor", "critic", "reference", "reward")
THIS_MACHINE = ""
"in place of the address of a node"
OWN = ("model.path", "model.trust_remote_code")
"settings that a role never takes from the actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """The model of one role, and its pool."""

    source: ModelSource
    shape: ModelShape
    pool: ResourcePool
    values: Mapping[str, Any]
    "settings of this role, by dotted key"
    shared: tuple[str, ...]
    "settings that default to the actor's"
    tokenizer: TokenizerBundle | None = None
    "of the actor"
    rollout_pool: ResourcePool | None = None
    "of the actor, where it generates on another pool than its own"

    @property
    def pools(self) -> list[ResourcePool]:
        return [self.pool] if self.rollout_pool is None else [self.pool, self.rollout_pool]


class SharedPlan:
    """The roles of a program and their plan, which is computed when the first role starts.

    From then on until the roles are closed, the process works as the plan says: CPU threads, TF32, SDPA kernels and
    memory limit.
    """

    learns_while_generating = False
    "the actor gets its updates while its rollout works on another pool"

    def __init__(self, *, neighbours: Sequence[RoleName] = ()) -> None:
        """`neighbours` are roles outside of this plan for which it leaves room, each with a model of the same shape."""
        self._neighbours = tuple(neighbours)
        self._models: dict[RoleName, PlacedModel] = {}
        self._planned: tuple[Workload, Plan, Mapping[str, ResourcePool]] | None = None
        self._closed = False
        self._in_use: dict[RoleName, ExitStack] = {}
        "what keeps the pool of each role that is not closed"
        self._process = ExitStack()
        "what the plan sets in this process"

    def add(
        self, role: RoleName, path: str, *, pool: ResourcePool, values: Mapping[str, Any], shared: Sequence[str]
    ) -> PlacedModel:
        """Add a role after checking its settings and files. Raises ConfigError, ModelError or HardwareError."""
        self.check_open()
        if self._planned is not None:
            raise ConfigError(
                f"the {role} was added after the session was planned for: {', '.join(self._models)}",
                hint="create all roles before the first call, or use a second session",
            )
        if role in self._models:
            raise ConfigError(f"this session already has the {role}")
        model = _placed(role, path, pool=pool, values=values, shared=shared)
        self._models[role] = model
        self._occupy(role, pool)
        return model

    def generate_on(self, pool: ResourcePool) -> None:
        """Give the rollout of the actor a pool of its own."""
        self._models["actor"] = replace(self._models["actor"], rollout_pool=pool)
        self._occupy("rollout", pool)

    @property
    def plan(self) -> Plan:
        """The plan, computed on first use. Raises ConfigError, HardwareError or DoesNotFitError."""
        return self._solved()[1]

    def planned(self, role: RoleName) -> Planned:
        """The settings and plan from which one role is built, with its model in place of the actor's."""
        workload, plan, pools = self._solved()
        model = self._models[role]
        return Planned(
            config=self._config(role),
            hardware=model.pool.hardware,
            sources={"actor": model.source, role: model.source},
            workload=workload,
            plan=plan,
            pools=pools,
        )

    def move(self, role: RoleName, pool: ResourcePool) -> None:
        """Plan again with a role on another pool, whose former one it keeps until `moved`. An error changes nothing."""
        self._change(role, replace(self._models[role], pool=pool))

    def moved(self, role: RoleName) -> None:
        """The role works on its new pool and needs the former one no more."""
        self._occupy(role, self._models[role].pool)

    def replace_model(self, role: RoleName, path: str) -> None:
        """Plan again with another model for a role. An error changes nothing."""
        old = self._models[role]
        self._change(role, _placed(role, path, pool=old.pool, values=old.values, shared=old.shared))

    def close(self) -> None:
        """Close the session: no further role can start."""
        self._closed = True
        self._process.close()

    def release(self, role: RoleName) -> None:
        """Record that a role has closed; after the last one, the process has its own settings again."""
        for own in (role, "rollout") if role == "actor" else (role,):
            self._in_use.pop(own, ExitStack()).close()
        if not self._in_use:
            self._process.close()

    def check_open(self) -> None:
        """Raise ConfigError after `close`."""
        if self._closed:
            raise ConfigError("the session is closed", hint="use the roles inside its `with` block")

    def reference_is_base(self) -> bool:
        """Whether the actor with disabled adapters serves as the reference: same model, pool and temperature."""
        if not {"actor", "reference"} <= self._models.keys():
            return False
        actor, reference = self._models["actor"], self._models["reference"]
        configs = self._config("actor"), self._config("reference")
        return (
            configs[0].model.lora_rank > 0
            and actor.source.folder == reference.source.folder
            and actor.pool.name == reference.pool.name
            and configs[0].rollout.temperature == configs[1].rollout.temperature
        )

    def _occupy(self, role: RoleName, pool: ResourcePool) -> None:
        before, self._in_use[role] = self._in_use.get(role, ExitStack()), ExitStack()
        self._in_use[role].enter_context(pool.in_use())
        before.close()

    def _change(self, role: RoleName, model: PlacedModel) -> None:
        self.check_open()
        before = self._models[role], self._planned
        self._models[role], self._planned = model, None
        if before[1] is not None:
            try:
                self._solved()
            except BaseException:
                self._models[role], self._planned = before
                raise

    def _config(self, role: RoleName) -> RunConfig:
        """The settings of a role: its own, else the actor's, else the default."""
        model, actor = self._models[role], self._models.get("actor")
        followed = {} if actor is None else {key: actor.values[key] for key in model.shared if key in actor.values}
        return load_values(None, {**followed, **model.values}).config

    def _solved(self) -> tuple[Workload, Plan, Mapping[str, ResourcePool]]:
        self.check_open()
        if self._planned is None:
            if not self._models:
                raise ConfigError("the session has no role with a model to plan")
            pools = {pool.name: pool for model in self._in_order().values() for pool in model.pools}
            placement = {role: model.pool.name for role, model in self._in_order().items()}
            actor = self._models.get("actor")
            if actor is not None and actor.rollout_pool is not None:
                placement["rollout"] = actor.rollout_pool.name
            workload = replace(self._workload(), asynchronous=self.learns_while_generating)
            cluster, positions = _cluster(pools)
            requests = {name: replace(self._request(name, pool), nodes=positions[name]) for name, pool in pools.items()}
            own = {role: name for role, name in placement.items() if role in (*workload.models, "rollout")}
            plan = assembled(solve_pools(workload, cluster, requests, placement=own, measured=own_measurements()))
            self._process.close()
            self._process.enter_context(applied_here(plan, pools))
            self._planned = workload, plan, pools
            for note in plan.notes:
                logger.info(note)
        return self._planned

    def _in_order(self) -> dict[RoleName, PlacedModel]:
        return {role: self._models[role] for role in ORDER if role in self._models}

    def _workload(self) -> Workload:
        models = {role: model.shape for role, model in self._in_order().items()}
        configs = [self._config(role) for role in models]
        first = configs[0]
        ranks = {role: self._config(role).model.lora_rank for role in models if role in TRAINED_ROLES}
        adapted = next((config for config in configs if config.model.lora_rank > 0), first)
        self._check_ids()
        if self._neighbours:
            shape, row = next(iter(models.values())), ALGORITHMS[first.algorithm.name]
            left_out = () if row.needs_critic else ("critic",)
            roles = [role for role in ORDER if role in models or role in self._neighbours]
            models = {role: shape for role in roles if role in models or role not in left_out}
        workload = shared_workload(
            models,
            data=replace(
                first.data,
                max_prompt_length=max(config.data.max_prompt_length for config in configs),
                max_response_length=max(config.data.max_response_length for config in configs),
            ),
            algorithm=first.algorithm,
            model=adapted.model,
            trainer=replace(
                first.trainer,
                batch_size=max(config.trainer.batch_size for config in configs),
                mini_batch_size=max(config.trainer.mini_batch_size for config in configs),
            ),
        )
        whole = tuple(role for role, rank in ranks.items() if rank == 0 < max(ranks.values()))
        workload = replace(workload, lora_rank=max(ranks.values(), default=0), whole_roles=whole)
        is_base = self.reference_is_base() or "reference" in models.keys() - self._models.keys()
        return workload.with_adapters(workload.lora_rank) if workload.lora_rank > 0 and is_base else workload

    def _check_ids(self) -> None:
        """Raise ModelError for a role that shares the actor's token ids and does not have its words."""
        actor = self._models.get("actor")
        if actor is None or actor.tokenizer is None:
            return
        shapes = {role: model.shape for role, model in self._models.items()}
        for role, model in self._models.items():
            if role in ("critic", "reference") and model.source.folder != actor.source.folder:
                code = self._config(role).model.trust_remote_code
                check_vocabulary(role, model.source, shapes, actor.tokenizer, trust_remote_code=code)

    def _request(self, name: str, pool: ResourcePool) -> PoolRequest:
        """The requests of the roles of a pool to its devices."""
        roles = [role for role, model in self._in_order().items() if model.pool.name == name]
        configs = {role: self._config(role) for role in roles}
        optimizers = {role: config.optimizer.name for role, config in configs.items() if role in TRAINED_ROLES}
        if len(set(optimizers.values())) > 1:
            given = " and ".join(f"`{optimizer}` of the {role}" for role, optimizer in optimizers.items())
            raise ConfigError(f"`optimizer` is {given}", hint="roles that share a pool use the same optimizer")
        first = configs[roles[0]] if roles else self._config("actor")
        devices = None if pool.emulate else tuple(device.index for device in pool.hardware.devices)
        plan = replace(first.plan, num_devices=pool.devices_per_node, num_nodes=pool.num_nodes)
        requests = Requests(
            plan=replace(plan, device="cpu") if devices == () else plan,
            rollout=first.rollout,
            optimizer=next(iter(optimizers.values()), first.optimizer.name),
        )
        return PoolRequest(devices=devices, requests=requests, emulate=pool.emulate)


def _placed(
    role: RoleName, path: str, *, pool: ResourcePool, values: Mapping[str, Any], shared: Sequence[str]
) -> PlacedModel:
    loaded = load_values(None, {**values, "model.path": str(path)})
    for sentence in warnings_of(loaded.report):
        logger.warning(sentence)
    if is_offline(loaded.config.algorithm.name):
        raise ConfigError(
            f"`algorithm` is `{loaded.config.algorithm.name}`, which trains on offline data",
            hint="use `rl_compat.train` for it",
        )
    model = loaded.config.model
    source = resolve_model(model.path, needs=ALL_PARTS if role in ("actor", "reward") else WITHOUT_TOKENIZER)
    tokenizer = load_tokenizer(source.folder, trust_remote_code=model.trust_remote_code) if role == "actor" else None
    if role in TRAINED_ROLES:
        check_adapters(model, source, headless=role == "critic")
    return PlacedModel(
        source=source,
        shape=ModelShape.from_folder(source.folder),
        pool=pool,
        values={**values, "model.path": model.path},
        shared=tuple(key for key in shared if key not in OWN),
        tokenizer=tokenizer,
    )


def _cluster(pools: Mapping[str, ResourcePool]) -> tuple[Sequence[Hardware], Mapping[str, tuple[int, ...]]]:
    """The machines of the pools, each with the devices of all pools on it, and those of each pool by position."""
    at = {name: pool.nodes or (THIS_MACHINE,) for name, pool in pools.items()}
    places = list(dict.fromkeys(place for nodes in at.values() for place in nodes))
    machines = []
    for place in places:
        hardware = [pool.hardware for name, pool in pools.items() if place in at[name]]
        devices = {device.index: device for machine in hardware for device in machine.devices}
        machines.append(replace(hardware[0], devices=tuple(devices[index] for index in sorted(devices))))
    return machines, {name: tuple(map(places.index, nodes)) for name, nodes in at.items()}
