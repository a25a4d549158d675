"""What a plan is made for: models, what each of them does in a step, and how much of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    DevicesConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import CRITIC_ROLES, TRAINED_ROLES, RoleName

VALIDATION_SEQS = 128
"useful number of concurrent sequences in a validation, independent of the training batch"
HEADLESS_ROLES = (*CRITIC_ROLES, "reward", "cost")
"one number per sequence or token instead of an output over the vocabulary"

Pass = Literal["generate", "logprobs", "score", "update"]
"`score` is a forward of a model without an output over the vocabulary: values, rewards"


@dataclass(frozen=True, slots=True)
class Phase:
    """One pass of one model."""

    name: str
    "as in the plan's budgets: `rollout`, `reward`, `logprobs`, `critic_update` …"
    role: RoleName
    does: Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything about a task that decides how much memory and which devices it needs."""

    models: Mapping[RoleName, ModelShape]
    "the models that are kept at the same time, the actor first; a role that holds no weights of its own is absent"
    phases: tuple[Phase, ...]
    "in the order of a step"
    max_prompt_length: int
    max_response_length: int
    batch_size: int
    "prompts, or given rows, of a step"
    mini_batch_size: int
    "prompts, or given rows, of an optimizer step"
    drawn_rows: int = 0
    "prompts of earlier steps that a step learns from too"
    passes: int = 1
    "optimization passes over the rows of a step"
    sequences_per_row: int = 1
    "responses to a prompt, or sequences of a given row"
    min_rollout_seqs: int = 0
    "useful number of concurrent sequences of a validation, even if a step has fewer"
    lora_rank: int = 0
    "of the adapters of trained roles, the largest if they differ; 0 trains all weights"
    whole_roles: tuple[RoleName, ...] = ()
    "roles that train all their weights although others train adapters"
    lora_targets: tuple[str, ...] = ()
    entropy: bool = False
    "the policy loss needs the entropy of every token"
    sorts_vocabulary: bool = False
    "sampling is limited by top-k or top-p"
    pairs: bool = False
    "the two sequences of a row go through the model together"
    scores: bool = False
    "the actor is a reward model: one number instead of an output over the vocabulary"
    asynchronous: bool = False
    "the actor learns while a rollout on another pool generates"
    publishers: int = 0
    "processes that each publish a part of the actor's weights for a rollout on another pool, through host memory"
    packs: bool = False
    "several sequences share a row, so that attention needs a mask"

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_prompt_length + self.max_response_length

    @property
    def rollout_seqs(self) -> int:
        """The useful number of concurrent sequences."""
        return max(self.batch_size * self.sequences_per_row, self.min_rollout_seqs)

    @property
    def mini_batch_seqs(self) -> int:
        """Sequences of an optimizer step."""
        return self.mini_batch_size * self.sequences_per_row

    @property
    def main_model(self) -> ModelShape:
        """The actor, or the first of the other models where there is no actor."""
        return next(iter(self.models.values()))

    @property
    def generates(self) -> bool:
        return any(phase.does == "generate" for phase in self.phases)

    @property
    def trains(self) -> bool:
        return any(phase.does == "update" for phase in self.phases)

    def updates(self, role: RoleName) -> bool:
        """Whether the weights of a role change."""
        return any(phase.does == "update" and phase.role == role for phase in self.phases)

    def is_headless(self, role: RoleName) -> bool:
        """Whether a role outputs one number instead of logits over the vocabulary."""
        return role in HEADLESS_ROLES or (role == "actor" and self.scores)

    def trainable_parameters(self, role: RoleName) -> int:
        """Parameters that training changes, kept in fp32 even where they are only evaluated; 0 for frozen roles."""
        if role not in TRAINED_ROLES:
            return 0
        shape, headless = self.models[role], self.is_headless(role)
        head = shape.hidden_size + 1 if headless else 0
        if self.has_adapters(role):
            return shape.lora_parameters(self.lora_rank, self.lora_targets) + head
        return (shape.trunk_parameters + head) if headless else shape.num_parameters

    def has_adapters(self, role: RoleName) -> bool:
        """Whether a role trains adapters, if it learns, and not all its weights."""
        return self.lora_rank > 0 and role not in self.whole_roles

    def only(self, roles: Collection[RoleName]) -> Workload:
        """The part of the workload that some of its roles do."""
        return replace(
            self,
            models={role: shape for role, shape in self.models.items() if role in roles},
            phases=tuple(phase for phase in self.phases if phase.role in roles),
        )

    def with_own_rollout(self) -> Workload:
        """The same, generated by a copy of the actor's weights in a role of its own."""
        return replace(
            self,
            models={**self.models, "rollout": self.models["actor"]},
            phases=tuple(
                replace(phase, role="rollout") if phase.does == "generate" else phase for phase in self.phases
            ),
        )

    def of_one_device(self, num_devices: int) -> Workload:
        """The largest share of one of the devices among which rows are divided."""
        return replace(
            self,
            batch_size=-(-self.batch_size // num_devices),
            drawn_rows=-(-self.drawn_rows // num_devices),
            mini_batch_size=-(-self.mini_batch_size // num_devices),
            min_rollout_seqs=-(-self.min_rollout_seqs // num_devices),
        )

    def with_adapters(self, rank: int) -> Workload:
        """The same training by adapters: the reference becomes the actor with its adapters switched off."""
        phases = tuple(replace(phase, role="actor") if phase.role == "reference" else phase for phase in self.phases)
        return replace(
            self, models={r: s for r, s in self.models.items() if r != "reference"}, phases=phases, lora_rank=rank
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What the user asks of the hardware: sections of the settings, `auto` where the planner decides."""

    plan: DevicesConfig = field(default_factory=DevicesConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    optimizer: str = "adamw"


def run_requests(config: RunConfig) -> Requests:
    """What the settings of a run ask of the hardware."""
    return Requests(plan=config.plan, rollout=config.rollout, optimizer=config.optimizer.name)


def run_workload(config: RunConfig, shapes: Mapping[RoleName, ModelShape]) -> Workload:
    """The training that settings describe.

    `shapes` has the actor's, and the critic's, reward model's and cost model's where they are models of their own.
    """
    return _offline_workload(config, shapes["actor"]) if is_offline(config.algorithm.name) else _online(config, shapes)


def evaluation_workload(config: RunConfig, shapes: Mapping[RoleName, ModelShape]) -> Workload:
    """Measuring the model of the settings on validation data, without training; `shapes` as in `run_workload`."""
    whole = run_workload(config, shapes)
    if is_offline(config.algorithm.name):
        return replace(whole, phases=tuple(phase for phase in whole.phases if phase.does != "update"))
    phases = tuple(phase for phase in whole.phases if phase.name in ("rollout", "reward"))
    roles = {phase.role for phase in phases}
    return replace(
        whole.only(roles),
        phases=phases,
        batch_size=1,
        mini_batch_size=1,
        sequences_per_row=1,
        min_rollout_seqs=VALIDATION_SEQS,
        sorts_vocabulary=False,
    )


def shared_workload(
    models: Mapping[RoleName, ModelShape],
    *,
    data: DataConfig,
    algorithm: AlgorithmConfig = AlgorithmConfig(),
    model: ModelConfig = ModelConfig(),
    trainer: TrainerConfig = TrainerConfig(),
) -> Workload:
    """The roles of a Python program, the actor first, if there is one."""
    return Workload(
        models=models,
        phases=_online_phases(models),
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        batch_size=trainer.batch_size,
        mini_batch_size=trainer.mini_batch_size,
        sequences_per_row=algorithm.group_size,
        min_rollout_seqs=VALIDATION_SEQS,
        lora_rank=model.lora_rank,
        lora_targets=model.lora_targets,
        entropy=algorithm.entropy_coef != 0.0,
    )


def _online(config: RunConfig, shapes: Mapping[RoleName, ModelShape]) -> Workload:
    """Reinforcement learning: the actor generates, and rewards, references and critics look at what it wrote."""
    algorithm, trainer = config.algorithm, config.trainer
    row = ALGORITHMS[algorithm.name]
    actor = shapes["actor"]
    critic = shapes.get("critic", actor)
    needed: dict[RoleName, ModelShape | None] = {
        "actor": actor,
        "critic": critic if row.needs_critic else None,
        "cost_critic": critic if row.needs_critic and row.needs_cost else None,
        "reference": actor if needs_reference(algorithm) else None,
        "reward": shapes.get("reward"),
        "cost": shapes.get("cost") if row.needs_cost else None,
    }
    models = {role: shape for role, shape in needed.items() if shape is not None}
    validates = trainer.validate_before or trainer.validate_after or trainer.validate_every > 0
    workload = Workload(
        models=models,
        phases=_online_phases(models),
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        batch_size=trainer.batch_size,
        mini_batch_size=trainer.mini_batch_size,
        drawn_rows=drawn_rows(config),
        passes=algorithm.num_epochs,
        sequences_per_row=algorithm.group_size,
        min_rollout_seqs=VALIDATION_SEQS if config.data.val_files and validates else 0,
        lora_targets=config.model.lora_targets,
        entropy=algorithm.entropy_coef != 0.0,
        sorts_vocabulary=config.rollout.top_p < 1.0 or config.rollout.top_k > 0,
        asynchronous=trainer.flow == "async",
    )
    return workload.with_adapters(config.model.lora_rank) if config.model.lora_rank else workload


def drawn_rows(config: RunConfig) -> int:
    """Prompts of earlier steps whose responses a step trains on again, once there are as many."""
    reuse, draws = config.samples.most_uses, config.samples.replay.draws
    if reuse == 1:
        return 0
    return math.ceil(config.trainer.batch_size * (reuse - 1 if draws == "auto" else draws))


def _online_phases(roles: Collection[RoleName]) -> tuple[Phase, ...]:
    phases = (
        Phase("rollout", "actor", "generate"),
        Phase("reward", "reward", "score"),
        Phase("cost", "cost", "score"),
        Phase("logprobs", "actor", "logprobs"),
        Phase("reference", "reference", "logprobs"),
        Phase("values", "critic", "score"),
        Phase("cost_values", "cost_critic", "score"),
        Phase("critic_update", "critic", "update"),
        Phase("cost_critic_update", "cost_critic", "update"),
        Phase("actor_update", "actor", "update"),
    )
    return tuple(phase for phase in phases if phase.role in roles)


def _offline_workload(config: RunConfig, actor: ModelShape) -> Workload:
    """Training on offline data: its log-probabilities, those of the reference, and updates."""
    algorithm, trainer = config.algorithm, config.trainer
    row = ALGORITHMS[algorithm.name]
    reference_free = algorithm.name == "dpo" and algorithm.dpo.reference_free
    measures: Pass = "score" if row.scores else "logprobs"
    reference = (Phase("reference", "actor", measures),) if row.compares_with_reference and not reference_free else ()
    return Workload(
        models={"actor": actor},
        phases=(*reference, Phase("evaluation", "actor", measures), Phase("actor_update", "actor", "update")),
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        batch_size=trainer.batch_size,
        mini_batch_size=trainer.mini_batch_size,
        sequences_per_row=2 if row.learns_from == "preference" else 1,
        lora_rank=config.model.lora_rank,
        lora_targets=config.model.lora_targets,
        pairs=row.learns_from == "preference",
        scores=row.scores,
        packs=algorithm.name == "sft" and algorithm.sft.packing,
    )


def needs_reference(algorithm: AlgorithmConfig) -> bool:
    """Whether a step of reinforcement learning compares the actor with the model that it started from."""
    return not is_offline(algorithm.name) and (algorithm.kl_in_reward != "none" or algorithm.kl_loss != "none")
