"""One step of training: collect experience, then learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rl_compat.batch import Batch
from rl_compat.objectives.experience import Experience, ExperienceSettings, RewardParts, make_experience
from rl_compat.rewards.types import Scores
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.online.sampling import Draw, SamplingSettings, prompts_of, sample
from rl_compat.trainer.reporter import Timer
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.critic import CriticModel
from rl_compat.workers.reference import ReferenceModel
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The models of a run; those that the algorithm has no use for are absent."""

    actor: ActorModel
    reward: RewardModel
    critic: CriticModel | None = None
    reference: ReferenceModel | None = None
    cost: RewardModel | None = None
    cost_critic: CriticModel | None = None

    @property
    def critics(self) -> dict[str, CriticModel]:
        """Those that are there, by role."""
        both = {"critic": self.critic, "cost_critic": self.cost_critic}
        return {role: critic for role, critic in both.items() if critic is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    experience: ExperienceSettings
    sampling: SamplingSettings
    one_update: bool = False
    "a step is one optimizer step and nothing before it needs log-probabilities: the update's own are the old ones"
    sum_pi_squared: bool = False
    greedy_response: bool = False
    "the reward of a greedy response to each prompt is asked for"
    reward_parts: tuple[str, ...] | None = None
    "the parts of the reward that are asked for, all functions when empty; None where the sum is enough"
    reward_part_weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a step gathered before it changes any weights."""

    sequences: Sequences
    scores: Scores
    experience: Experience
    costs: Scores | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    "of the sampling"


def collect(
    roles: Roles,
    prompts: Sequence[Prompt],
    settings: StepSettings,
    *,
    kl_coef: float,
    seed: int,
    timer: Timer,
    memory: PhaseMemory,
    more: Draw | None = None,
    multiplier: float = 0.0,
) -> Collected:
    """Generate, score, and work out advantages. Changes no weights.

    `more` gives further prompts, for settings that replace some; `multiplier` is the price of the cost.
    """
    sampled = sample(
        roles.actor,
        roles.reward,
        prompts,
        settings.sampling,
        more=more,
        seed=seed,
        timer=timer,
        memory=memory,
    )
    sequences, scores = sampled.sequences, sampled.scores
    metrics, greedy_rewards = sampled.metrics, None
    if settings.greedy_response:
        greedy_rewards = _greedy_rewards(roles, sequences, settings.sampling, timer=timer, memory=memory)
        known = [reward for reward in greedy_rewards if reward is not None]
        metrics |= {"critic/greedy_score/mean": sum(known) / len(known)} if known else {}
    costs = None
    if roles.cost is not None:
        with memory("cost"), timer("cost"):
            costs = roles.cost.compute_rewards(sequences).result()
    batch = _with_logprobs(roles, sequences, settings, timer=timer, memory=memory)
    if roles.reference is not None:
        with memory("ref"), timer("ref"):
            batch = batch.with_(ref_logprobs=roles.reference.compute_logprobs(sequences).result())
    if roles.critic is not None:
        with memory("values"), timer("values"):
            batch = batch.with_(values=roles.critic.compute_values(sequences).result())
    if roles.cost_critic is not None:
        with memory("cost_values"), timer("cost_values"):
            batch = batch.with_(cost_values=roles.cost_critic.compute_values(sequences).result())
    with timer("adv"):
        experience = make_experience(
            batch,
            rewards=scores.rewards,
            settings=settings.experience,
            kl_coef=kl_coef,
            parts=_parts(scores, settings),
            greedy_rewards=greedy_rewards,
            costs=None if costs is None else costs.rewards,
            multiplier=multiplier,
        )
    return Collected(sequences=sequences, scores=scores, experience=experience, costs=costs, metrics=metrics)


def _greedy_rewards(
    roles: Roles, sequences: Sequences, settings: SamplingSettings, *, timer: Timer, memory: PhaseMemory
) -> tuple[float | None, ...]:
    """Of the most likely response to the prompt of each group (ReMax)."""
    prompts = prompts_of(sequences)
    with memory("gen_max"), timer("gen_max", items=len(prompts)) as on_progress:
        greedy = roles.actor.generate(
            prompts, max_new_tokens=settings.max_new_tokens, temperature=0.0, on_progress=on_progress
        )
    with memory("reward"), timer("reward"):
        return roles.reward.compute_rewards(greedy).result().rewards


def _with_logprobs(
    roles: Roles, sequences: Sequences, settings: StepSettings, *, timer: Timer, memory: PhaseMemory
) -> Batch:
    """The batch with the log-probabilities that the step needs before it updates."""
    batch = sequences.batch
    if settings.sum_pi_squared:
        with memory("old_log_prob"), timer("old_log_prob"):
            outputs = roles.actor.compute_token_outputs(sequences).result()
        batch = batch.with_(old_logprobs=outputs["logprobs"], sum_pi_squared=outputs["sum_pi_squared"])
    elif not settings.one_update and not settings.experience.off_policy.bypass:
        with memory("old_log_prob"), timer("old_log_prob"):
            batch = batch.with_(old_logprobs=roles.actor.compute_logprobs(sequences).result())
    return batch.with_(old_logprobs=batch.rollout_logprobs) if settings.experience.off_policy.bypass else batch


def _parts(scores: Scores, settings: StepSettings) -> RewardParts | None:
    if settings.reward_parts is None:
        return None
    values = scores.parts(settings.reward_parts)
    given = dict(zip(values, settings.reward_part_weights, strict=True)) if settings.reward_part_weights else {}
    return RewardParts(values=values, weights=dict.fromkeys(values, 1.0) | dict(scores.weights) | given)


def learn(
    roles: Roles, experience: Experience, *, update_actor: bool, seed: int, timer: Timer, memory: PhaseMemory
) -> dict[str, float]:
    """Update the critics, then the actor, from the experience; returns their metrics."""
    metrics: dict[str, float] = {}
    batch = experience.batch
    if roles.critic is not None:
        with memory("update_critic"), timer("update_critic"):
            metrics |= roles.critic.update(batch, seed=seed)
    if roles.cost_critic is not None:
        of_cost = batch.with_(values=batch.cost_values, returns=batch.cost_returns)
        with memory("update_cost_critic"), timer("update_cost_critic"):
            metrics |= roles.cost_critic.update(of_cost, seed=seed)
    if update_actor:
        with memory("update_actor"), timer("update_actor"):
            metrics |= roles.actor.update(batch, seed=seed)
    return metrics
