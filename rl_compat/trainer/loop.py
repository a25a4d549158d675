"""One training step: roll out, collect experience, learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.table import ALGORITHMS, policy_loss_of
from rl_compat.batch import Batch, Sequences
from rl_compat.config.types import AlgorithmConfig, RunConfig
from rl_compat.objectives.experience import Experience, ExperienceSettings, RewardParts, make_experience
from rl_compat.replay.buffer import DrawnGroups
from rl_compat.rewards.types import Scores
from rl_compat.trainer.online.sampling import Draw, Scored, prompts_of, sample, start_scoring
from rl_compat.trainer.phases import Phases
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.critic import CriticModel
from rl_compat.workers.reference import ReferenceModel
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.setup import optimizer_steps_per_batch

Result = TypeVar("Result")
OneRole = TypeVar("OneRole", ActorModel, CriticModel, ReferenceModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The models of a run; None for those that the algorithm does not use."""

    actor: ActorModel
    reward: RewardModel
    critic: CriticModel | None = None
    reference: ReferenceModel | None = None
    cost: RewardModel | None = None
    cost_critic: CriticModel | None = None

    @property
    def critics(self) -> dict[str, CriticModel]:
        """The critics of the run, by role."""
        both = {"critic": self.critic, "cost_critic": self.cost_critic}
        return {role: critic for role, critic in both.items() if critic is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Responses, with the scores that are being computed from them."""

    sequences: Sequences
    scores: Future[Scores]
    costs: Future[Scores] | None
    greedy_rewards: tuple[float | None, ...] | None
    "of the greedy response to the prompt of each group, where the algorithm needs it"
    metrics: dict[str, float]
    filtered: Scored | None = None
    "the responses to prompts that dynamic sampling replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Responses of earlier steps that a step trains on again."""

    drawn: DrawnGroups
    experience: Experience
    "computed by the present policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The data that a step collects before it changes any weights."""

    sequences: Sequences
    scores: Scores
    experience: Experience
    costs: Scores | None = None
    greedy_rewards: tuple[float | None, ...] | None = None
    filtered: Scored | None = None
    "the responses to prompts that dynamic sampling replaced"
    replayed: Replayed | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    "of the sampling and of the handover of weights to the rollout"

    @property
    def batch(self) -> Batch:
        """The responses that the step learns from, those of earlier steps included."""
        batch = self.experience.batch
        return batch if self.replayed is None else batch.joined(self.replayed.experience.batch)


def roll_out(
    roles: Roles, prompts: Sequence[Prompt], config: RunConfig, phases: Phases, *, more: Draw | None = None
) -> Rollout:
    """Generate responses and start scoring them, with the weights that the rollout has.

    `more` returns further prompts, for settings that replace some.
    """
    sampled = sample(roles.actor, roles.reward, prompts, config, phases, more=more)
    sequences, costs = sampled.sequences, None
    if roles.cost is not None:
        with phases("cost"):
            costs = start_scoring(roles.cost, sequences, actor=roles.actor)
    needs_greedy = ALGORITHMS[config.algorithm.name].needs_greedy_response
    greedy = _greedy_rewards(roles, sequences, config, phases) if needs_greedy else None
    return Rollout(
        sequences=sequences,
        scores=sampled.scores,
        costs=costs,
        greedy_rewards=greedy,
        filtered=sampled.filtered,
        metrics=sampled.metrics | _greedy_metrics(greedy) | roles.actor.take_handover_metrics(),
    )


def collect(
    roles: Roles, rollout: Rollout, config: RunConfig, phases: Phases, *, kl_coef: float, multiplier: float = 0.0
) -> Collected:
    """Compute what the scores, the values and the present policy say about responses. Changes no weights.

    Reward functions, and models on other devices than the actor's, work while the actor does. `multiplier` is the
    Lagrange multiplier of the cost.
    """
    sequences = rollout.sequences
    reference = _call(roles, roles.reference, lambda role: role.compute_logprobs(sequences))
    values = _call(roles, roles.critic, lambda role: role.compute_values(sequences))
    cost_values = _call(roles, roles.cost_critic, lambda role: role.compute_values(sequences))
    batch = _with_logprobs(roles, sequences, config, phases)
    if reference is not None:
        with phases("ref"):
            batch = batch.with_(ref_logprobs=reference.result())
    if values is not None:
        with phases("values"):
            batch = batch.with_(values=values.result())
    if cost_values is not None:
        with phases("cost_values"):
            batch = batch.with_(cost_values=cost_values.result())
    with phases("reward"):
        scores = rollout.scores.result()
    costs = None
    if rollout.costs is not None:
        with phases("cost"):
            costs = rollout.costs.result()
    with phases.timer("adv"):
        experience = make_experience(
            batch,
            rewards=scores.rewards,
            settings=ExperienceSettings(algorithm=config.algorithm, off_policy=config.off_policy),
            kl_coef=kl_coef,
            parts=_parts(scores, config.algorithm),
            greedy_rewards=rollout.greedy_rewards,
            costs=None if costs is None else costs.rewards,
            multiplier=multiplier,
        )
    return Collected(
        sequences=sequences,
        scores=scores,
        experience=experience,
        costs=costs,
        greedy_rewards=rollout.greedy_rewards,
        filtered=rollout.filtered,
        metrics=rollout.metrics,
    )


def learn(roles: Roles, batch: Batch, phases: Phases, *, update_actor: bool) -> dict[str, float]:
    """Update the critics and the actor from the batch of an experience; returns their metrics."""
    metrics: dict[str, float] = {}
    seed = phases.seed
    of_cost = batch.with_(values=batch.cost_values, returns=batch.cost_returns)
    critic = _call(roles, roles.critic, lambda role: role.update(batch, seed=seed))
    cost_critic = _call(roles, roles.cost_critic, lambda role: role.update(of_cost, seed=seed))
    actor = _call(roles, roles.actor if update_actor else None, lambda role: role.update(batch, seed=seed))
    updates = {"update_critic": critic, "update_cost_critic": cost_critic, "update_actor": actor}
    for name, update in sorted(updates.items(), key=lambda named: named[1] is not None and named[1].is_running):
        if update is not None:
            with phases(name):
                metrics |= update.result()
    return metrics


class _RoleCall(Generic[Result]):
    """A call that is running, or that starts when `result` is called."""

    def __init__(self, start: Callable[[], Future[Result]], *, now: bool) -> None:
        self._start = start
        self._running = start() if now else None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def result(self) -> Result:
        return (self._running or self._start()).result()


def _call(roles: Roles, role: OneRole | None, start: Callable[[OneRole], Future[Result]]) -> _RoleCall[Result] | None:
    """A call of a role, which runs at once on other devices than the actor's and waits for its turn on the same."""
    return None if role is None else _RoleCall(partial(start, role), now=role.pool is not roles.actor.pool)


def _greedy_rewards(roles: Roles, sequences: Sequences, config: RunConfig, phases: Phases) -> tuple[float | None, ...]:
    """The reward of the greedy response to the prompt of each group (ReMax)."""
    prompts = prompts_of(sequences)
    with phases("gen_max", items=len(prompts)) as on_progress:
        greedy = roles.actor.generate(
            prompts, max_new_tokens=config.data.max_response_length, temperature=0.0, on_progress=on_progress
        ).result()
    with phases("reward"):
        return roles.reward.compute_rewards(greedy).result().rewards


def _greedy_metrics(rewards: Sequence[float | None] | None) -> dict[str, float]:
    known = [reward for reward in rewards or () if reward is not None]
    return {"critic/greedy_score/mean": sum(known) / len(known)} if known else {}


def _with_logprobs(roles: Roles, sequences: Sequences, config: RunConfig, phases: Phases) -> Batch:
    """The batch with the log-probabilities that the step needs before it updates."""
    batch = sequences.batch
    if ALGORITHMS[config.algorithm.name].needs_sum_pi_squared:
        with phases("old_log_prob"):
            outputs = roles.actor.compute_token_outputs(sequences).result()
        batch = batch.with_(old_logprobs=outputs["logprobs"], sum_pi_squared=outputs["sum_pi_squared"])
    elif not is_one_update(config) and not config.off_policy.bypass:
        with phases("old_log_prob"):
            batch = batch.with_(old_logprobs=roles.actor.compute_logprobs(sequences).result())
    return batch.with_(old_logprobs=batch.rollout_logprobs) if config.off_policy.bypass else batch


def is_one_update(config: RunConfig) -> bool:
    """Whether the update computes the old log-probabilities: a step is one optimizer step and needs none before it.

    A KL in the reward, off-policy correction, and a loss that selects tokens from a whole mini-batch need
    log-probabilities before the update. With `off_policy.bypass` the rollout's serve as the old ones.
    """
    algorithm, off_policy = config.algorithm, config.off_policy
    return (
        optimizer_steps_per_batch(config) == 1
        and POLICY_LOSSES[policy_loss_of(algorithm.name, algorithm.policy_loss)].select is None
        and algorithm.kl_in_reward == "none"
        and config.model.lora_dropout == 0.0
        and off_policy.importance == "none"
        and not off_policy.reject
        and not off_policy.vtrace.enabled
        and not off_policy.bypass
    )


def _parts(scores: Scores, algorithm: AlgorithmConfig) -> RewardParts | None:
    """The reward parts that the algorithm weights itself, all functions if it names none; None if it uses the sum."""
    if not ALGORITHMS[algorithm.name].needs_reward_parts:
        return None
    values, weights = scores.parts(algorithm.gdpo.parts), algorithm.gdpo.weights
    given = dict(zip(values, weights, strict=True)) if weights else {}
    return RewardParts(values=values, weights=dict.fromkeys(values, 1.0) | dict(scores.weights) | given)
