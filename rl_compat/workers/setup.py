"""Settings checked against files and hardware, their plan, and the settings of each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rl_compat import seeds
from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.types import ModelConfig, RunConfig, StepConfig
from rl_compat.distributed.pool import ResourcePool
from rl_compat.emulation.device import emulate
from rl_compat.hardware.nodes import least
from rl_compat.hardware.types import Hardware
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.folder import ALL_PARTS, Part
from rl_compat.models.files.registry import ModelSource, resolve_model
from rl_compat.models.load import LoadSettings, check_reward_head, check_targets
from rl_compat.models.lora import LoraSettings
from rl_compat.models.tokenizer import TokenizerBundle, check_same_words, load_tokenizer
from rl_compat.objectives.actor_critic import LossSettings
from rl_compat.planning.run import run_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.measurements import own_measurements
from rl_compat.planning.types import Plan, RoleName
from rl_compat.planning.workload import Workload, drawn_rows, run_workload
from rl_compat.training.optimizers import OptimizerSettings

WITHOUT_TOKENIZER: tuple[Part, ...] = ("config", "weights")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Checked settings, their models on disk, and their plan."""

    config: RunConfig
    hardware: Hardware
    sources: Mapping[RoleName, ModelSource]
    "of the actor, and of the critic, reward model and cost model if they are separate models"
    workload: Workload
    plan: Plan
    pools: Mapping[str, ResourcePool]
    "by their names in the plan"

    def pool_of(self, role: RoleName) -> ResourcePool:
        """The device of a role; a role without weights uses the actor's."""
        return self.pools[self.plan.roles.get(role, self.plan.roles["actor"]).pool]

    def load_settings(self, role: RoleName, *, source: RoleName | None = None, learns: bool = True) -> LoadSettings:
        """The model of a role, with the files of `source` (default: itself), which are the actor's if it has none."""
        return LoadSettings(
            folder=self.sources.get(source or role, self.source).folder,
            role=self.plan.roles[role],
            lora=lora_settings(self.config.model, seed=seeds.derive(self.config.trainer.seed, "adapters", role))
            if learns
            else None,
            trust_remote_code=self.config.model.trust_remote_code,
        )

    @property
    def source(self) -> ModelSource:
        """Of the actor."""
        return self.sources["actor"]

    @property
    def shape(self) -> ModelShape:
        """Of the actor."""
        return self.workload.models["actor"]


@dataclass(frozen=True, kw_only=True)
class Setup(Planned):
    """Settings checked against files and hardware, and their plan. No weights are loaded."""

    tokenizer: TokenizerBundle
    chat: ChatEncoder

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model, its tokenizer and its chat template, with the tokens that end a response."""
        return (*self.source.notes, *self.tokenizer.notes, *self.chat.notes, *self.chat.ends())


def prepare(
    config: RunConfig,
    hardware: Hardware,
    *,
    describe: Callable[[RunConfig, Mapping[RoleName, ModelShape]], Workload] = run_workload,
) -> Setup:
    """Find the models and the tokenizer, and plan the workload that `describe` makes from them.

    Raises ModelError, HardwareError, ConfigError or DoesNotFitError.
    """
    model = config.model
    sources = _find_sources(config)
    tokenizer = load_tokenizer(
        tokenizer_folder(model, sources["actor"].folder),
        model_folder=sources["actor"].folder,
        trust_remote_code=model.trust_remote_code,
    )
    chat = ChatEncoder(tokenizer, model.chat_template)
    row = ALGORITHMS[config.algorithm.name]
    check_adapters(model, sources["actor"], headless=row.scores)
    if row.needs_critic:
        check_adapters(model, sources.get("critic", sources["actor"]), headless=True)
    for role in sources.keys() & {"reward", "cost"}:
        check_reward_head(sources[role].folder, trust_remote_code=model.trust_remote_code)
    shapes = {role: ModelShape.from_folder(source.folder) for role, source in sources.items()}
    if "critic" in sources:
        check_vocabulary("critic", sources["critic"], shapes, tokenizer, trust_remote_code=model.trust_remote_code)
    workload = describe(config, shapes)
    plan = run_plan(config, workload, hardware, measured=own_measurements())
    return Setup(
        config=config,
        hardware=hardware,
        sources=sources,
        tokenizer=tokenizer,
        chat=chat,
        workload=workload,
        plan=plan,
        pools={name: _resource_pool(name, plan, hardware, config.plan.address) for name in plan.pools},
    )


def _resource_pool(name: str, plan: Plan, hardware: Hardware, address: str | None) -> ResourcePool:
    """A pool of a plan. Each of several pools has processes of its own, so that all of them work at the same time."""
    pool = plan.pools[name]
    nodes = [hardware.nodes[position] for position in pool.nodes] if hardware.nodes else []
    return ResourcePool(
        gpus=[int(device.removeprefix("cuda:")) for device in pool.devices if device != "cpu"],
        num_processes=len(pool.devices) if len(plan.pools) > 1 or len(pool.devices) > 1 else None,
        num_nodes=pool.num_nodes,
        address=address,
        emulate=pool.emulated if len(plan.pools) > 1 else None,
        hardware=least([node.hardware for node in nodes if node.hardware is not None]) if nodes else hardware,
        nodes=[node.address for node in nodes],
    )


@contextmanager
def applied(plan: Plan, pools: Mapping[str, ResourcePool]) -> Iterator[None]:
    """Inside the block, this process and those of the pools work as the plan says; those of the pools then end."""
    with ExitStack() as stack:
        for pool in pools.values():
            stack.enter_context(pool.in_use())
        stack.enter_context(applied_here(plan, pools))
        yield


@contextmanager
def applied_here(plan: Plan, pools: Mapping[str, ResourcePool]) -> Iterator[None]:
    """Inside the block, this process works as the plan says, and so do processes of the pools that start."""
    with ExitStack() as stack:
        for name, pool in reversed(list(pools.items())):  # the number of threads is that of the first pool
            if pool.is_local:
                stack.enter_context(emulate(plan.pools[name]))
            else:
                pool.use(plan.pools[name])
        yield


def _find_sources(config: RunConfig) -> dict[RoleName, ModelSource]:
    """The models of the settings, by role. Raises ModelError."""
    model, row = config.model, ALGORITHMS[config.algorithm.name]
    sources: dict[RoleName, ModelSource] = {}
    sources["actor"] = resolve_model(model.path, needs=WITHOUT_TOKENIZER if model.tokenizer else ALL_PARTS)
    if model.critic_path and row.needs_critic:
        sources["critic"] = resolve_model(model.critic_path, needs=WITHOUT_TOKENIZER)
    if config.reward.model and not is_offline(row.name):
        sources["reward"] = resolve_model(config.reward.model, needs=ALL_PARTS)
    if config.cost.model and row.needs_cost:
        sources["cost"] = resolve_model(config.cost.model, needs=ALL_PARTS)
    return sources


def tokenizer_folder(model: ModelConfig, model_folder: Path) -> Path:
    """The folder of `model.tokenizer`, by default the model's own."""
    return resolve_model(model.tokenizer, needs=("tokenizer",)).folder if model.tokenizer else model_folder


def loss_settings(config: RunConfig) -> LossSettings:
    return LossSettings(algorithm=config.algorithm, width=config.data.max_response_length)


def optimizer_settings(run: RunConfig, lr: float, num_batches: int | None) -> OptimizerSettings:
    """The optimizer settings of a role that learns from `num_batches` batches; None is a constant rate."""
    steps_per_batch = optimizer_steps_per_batch(run)
    return OptimizerSettings(
        **{field.name: getattr(run.optimizer, field.name) for field in fields(StepConfig)},
        lr=lr,
        total_steps=None if num_batches is None else num_batches * steps_per_batch,
        steps_per_batch=None if num_batches is None else steps_per_batch,
    )


def check_vocabulary(
    role: RoleName,
    source: ModelSource,
    shapes: Mapping[RoleName, ModelShape],
    tokenizer: TokenizerBundle,
    *,
    trust_remote_code: bool,
) -> None:
    """Raise ModelError for a role that shares the actor's token ids and does not have its words."""
    own = replace(tokenizer, num_tokens=min(shapes["actor"].vocab_size, tokenizer.num_tokens))
    num_ids = shapes[role].vocab_size
    check_same_words(own, source.folder, role=role, num_ids=num_ids, trust_remote_code=trust_remote_code)


def check_adapters(model: ModelConfig, source: ModelSource, *, headless: bool) -> None:
    """Raise ModelError for adapters that the model of a role has no layers for."""
    if model.lora_rank > 0:
        code = model.trust_remote_code
        check_targets(source.folder, model.lora_targets, headless=headless, trust_remote_code=code)


def lora_settings(config: ModelConfig, *, seed: int = 0) -> LoraSettings | None:
    if config.lora_rank == 0:
        return None
    return LoraSettings(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        targets=config.lora_targets,
        seed=seed,
    )


def optimizer_steps_per_batch(config: RunConfig) -> int:
    """Optimizer steps of one training step; offline data is used once."""
    if is_offline(config.algorithm.name):
        return -(-config.trainer.batch_size // config.trainer.mini_batch_size)
    num_prompts = config.trainer.batch_size + drawn_rows(config)
    return config.algorithm.num_epochs * -(-num_prompts // config.trainer.mini_batch_size)
