"""One step of training: collect experience, then learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.config.types import RolloutConfig
from rl_compat.rewards.score import Scores
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.reporter import Timer
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.critic import CriticModel
from rl_compat.workers.experience import Experience, ExperienceSettings, make_experience
from rl_compat.workers.reference import ReferenceModel
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The models of a run; critic and reference are absent where the algorithm has none."""

    actor: ActorModel
    reward: RewardModel
    critic: CriticModel | None = None
    reference: ReferenceModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    experience: ExperienceSettings
    rollout: RolloutConfig
    group_size: int
    max_new_tokens: int
    one_update: bool = False
    "a step is one optimizer step and no KL is in the reward: the update's own log-probabilities are the old ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a step gathered before it changes any weights."""

    sequences: Sequences
    scores: Scores
    experience: Experience


def collect(
    roles: Roles,
    prompts: Sequence[Prompt],
    settings: StepSettings,
    *,
    kl_coef: float,
    seed: int,
    timer: Timer,
    memory: PhaseMemory,
) -> Collected:
    """Generate, score, and work out advantages. Changes no weights."""
    with memory("gen"), timer("gen", items=len(prompts) * settings.group_size) as on_progress:
        sequences = roles.actor.generate(
            prompts,
            max_new_tokens=settings.max_new_tokens,
            group_size=settings.group_size,
            top_p=settings.rollout.top_p,
            top_k=settings.rollout.top_k,
            seed=seed,
            on_progress=on_progress,
        )
    with memory("reward"), timer("reward"):
        scores = roles.reward.compute_rewards(sequences).result()
    batch = sequences.batch
    if not settings.one_update:
        with memory("old_log_prob"), timer("old_log_prob"):
            batch = batch.with_(old_logprobs=roles.actor.compute_logprobs(sequences).result())
    if roles.reference is not None:
        with memory("ref"), timer("ref"):
            batch = batch.with_(ref_logprobs=roles.reference.compute_logprobs(sequences).result())
    if roles.critic is not None:
        with memory("values"), timer("values"):
            batch = batch.with_(values=roles.critic.compute_values(sequences).result())
    with timer("adv"):
        experience = make_experience(batch, rewards=scores.rewards, settings=settings.experience, kl_coef=kl_coef)
    return Collected(sequences=sequences, scores=scores, experience=experience)


def learn(
    roles: Roles, experience: Experience, *, update_actor: bool, seed: int, timer: Timer, memory: PhaseMemory
) -> dict[str, float]:
    """Update the critic, then the actor, from the experience; returns their metrics."""
    metrics: dict[str, float] = {}
    if roles.critic is not None:
        with memory("update_critic"), timer("update_critic"):
            metrics |= roles.critic.update(experience.batch, seed=seed)
    if update_actor:
        with memory("update_actor"), timer("update_actor"):
            metrics |= roles.actor.update(experience.batch, seed=seed)
    return metrics
