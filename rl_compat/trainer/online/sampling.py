"""The responses that a step learns from, with their rewards; prompts that teach nothing can be replaced by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rl_compat import seeds
from rl_compat.algorithms.advantages.group_statistics import group_statistics, zero_spread_fraction
from rl_compat.config.types import RolloutConfig
from rl_compat.rewards.rows import join_scores, pick_scores
from rl_compat.rewards.types import Scores
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.reporter import Timer
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.sequences import Sequences

Draw = Callable[[int], Sequence[Prompt]]
"the next so many prompts of the run's order"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    rollout: RolloutConfig
    group_size: int
    max_new_tokens: int
    max_rounds: int | None = None
    "replace prompts whose rewards are all equal, in at most so many rounds of sampling; None keeps them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Responses in groups, and their rewards."""

    sequences: Sequences
    scores: Scores
    metrics: dict[str, float]


def sample(
    actor: ActorModel,
    reward: RewardModel,
    prompts: Sequence[Prompt],
    settings: SamplingSettings,
    *,
    seed: int,
    timer: Timer,
    memory: PhaseMemory,
    more: Draw | None = None,
) -> Sampled:
    """Responses to the prompts, scored.

    With `max_rounds` the prompts whose rewards are all equal are replaced by `more` (Yu et al. 2025, "DAPO", dynamic
    sampling), round after round, until there are as many as before or the rounds are used up. Then there are fewer,
    or those of the last round where no round had any.
    """

    def one_round(number: int, asked: Sequence[Prompt]) -> Sampled:
        with memory("gen"), timer("gen", items=len(asked) * settings.group_size) as on_progress:
            sequences = actor.generate(
                asked,
                max_new_tokens=settings.max_new_tokens,
                group_size=settings.group_size,
                top_p=settings.rollout.top_p,
                top_k=settings.rollout.top_k,
                min_p=settings.rollout.min_p,
                seed=seeds.derive(seed, "round", number),
                on_progress=on_progress,
            )
        with memory("reward"), timer("reward"):
            scores = reward.compute_rewards(sequences).result()
        return Sampled(sequences=sequences, scores=scores, metrics={})

    if settings.max_rounds is None:
        return one_round(0, prompts)
    assert more is not None, "prompts are replaced by further ones"
    rounds: list[Sampled] = []
    kept: list[Sampled] = []
    asked = prompts
    while asked and len(rounds) < settings.max_rounds:
        rounds.append(one_round(len(rounds), asked))
        kept += _only_with_spread(rounds[-1])
        missing = len(prompts) - sum(map(_num_groups, kept))
        asked = more(missing) if missing and len(rounds) < settings.max_rounds else ()
    return _joined(rounds, kept)


def _joined(rounds: Sequence[Sampled], kept: Sequence[Sampled]) -> Sampled:
    """What was kept, or the last round where nothing was, with the metrics of all rounds."""
    joined = join(kept or rounds[-1:])
    every = join(rounds)
    rewards = torch.tensor([reward for reward in every.scores.rewards if reward is not None])
    metrics = {
        "training/num_gen_batches": float(len(rounds)),
        "training/filter_groups/sampled_prompts": float(_num_groups(every)),
        "training/filter_groups/kept_prompts": float(sum(map(_num_groups, kept))),
        "training/filter_groups/zero_spread_groups": _zero_spread(every),
    }
    if len(rewards):
        metrics["training/filter_groups/sampled_score/mean"] = float(rewards.mean())
    return replace(joined, scores=replace(joined.scores, metrics=every.scores.metrics), metrics=metrics)


def join(parts: Sequence[Sampled]) -> Sampled:
    """One after the other."""
    trajectories = [item for part in parts for item in part.sequences.trajectories]
    texts = [text for part in parts for text in part.sequences.texts]
    return Sampled(
        sequences=Sequences.from_trajectories(trajectories, texts),
        scores=join_scores([part.scores for part in parts]),
        metrics={},
    )


def prompts_of(sequences: Sequences) -> list[Prompt]:
    """The prompt of each group, in ascending order of the groups."""
    prompts = {item.group: item.prompt for item in sequences.trajectories}
    return [prompts[group] for group in sorted(prompts)]


def _only_with_spread(sampled: Sampled) -> list[Sampled]:
    """The groups in which two scored rewards differ; an empty list without any."""
    rewards, groups, scored = _scored(sampled)
    group = group_statistics(rewards, groups=groups, scored=scored)
    rows = group.of_rows((group.num_scored > 1) & ~group.equal).nonzero().flatten().tolist()
    if not rows:
        return []
    trajectories, texts = sampled.sequences.trajectories, sampled.sequences.texts
    sequences = Sequences.from_trajectories([trajectories[row] for row in rows], [texts[row] for row in rows])
    return [Sampled(sequences=sequences, scores=pick_scores(sampled.scores, rows), metrics={})]


def _zero_spread(sampled: Sampled) -> float:
    rewards, groups, scored = _scored(sampled)
    return zero_spread_fraction(rewards=rewards, groups=groups, scored=scored)


def _scored(sampled: Sampled) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rewards = sampled.scores.rewards
    values = torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64)
    return values, sampled.sequences.batch.groups, torch.tensor([reward is not None for reward in rewards])


def _num_groups(sampled: Sampled) -> int:
    return len({item.group for item in sampled.sequences.trajectories})
