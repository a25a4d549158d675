"""From what a user asks for to what a learner is built from."""

from __future__ import annotations

from rl_compat.config.types import RunConfig
from rl_compat.objectives.offline import Objective
from rl_compat.objectives.preference import DPOObjective, KTOObjective, RewardModelObjective
from rl_compat.objectives.supervised import SFTObjective
from rl_compat.workers.learner import LearnerSettings
from rl_compat.workers.setup import Setup, lora_settings, optimizer_settings


def learner_settings(setup: Setup, *, num_batches: int | None, trains: bool = True) -> LearnerSettings:
    """The model that learns from given responses; without an optimizer where it is only measured."""
    config = setup.config
    packs = config.algorithm.name == "sft" and config.algorithm.sft.packing
    optimizer = optimizer_settings(config, config.optimizer.actor_lr, num_batches)
    return LearnerSettings(
        model_folder=setup.source.folder,
        role=setup.plan.roles["actor"],
        objective=objective_of(config),
        mini_batch_size=config.trainer.mini_batch_size,
        optimizer=optimizer if trains else None,
        lora=lora_settings(config.model),
        pack_tokens=config.data.max_prompt_length + config.data.max_response_length if packs else None,
        trust_remote_code=config.model.trust_remote_code,
    )


def objective_of(config: RunConfig) -> Objective:
    """What the algorithm minimizes."""
    algorithm, name = config.algorithm, config.algorithm.name
    if name == "sft":
        return SFTObjective()
    if name == "dpo":
        return DPOObjective(config=algorithm.dpo)
    if name == "kto":
        return KTOObjective(config=algorithm.kto)
    assert name == "reward_model", name
    return RewardModelObjective()
