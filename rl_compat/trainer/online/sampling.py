"""The responses of a step with their rewards, and dynamic sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from rl_compat import seeds
from rl_compat.algorithms.advantages.group import group_statistics, zero_spread_fraction
from rl_compat.batch import Sequences
from rl_compat.config.types import RunConfig
from rl_compat.rewards.types import Scores, join_scores, pick_scores
from rl_compat.trainer.phases import Phases
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import EarlyScores, RewardModel

Draw = Callable[[int], Sequence[Prompt]]
"returns the given number of next prompts in the order of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Responses in groups, and the future of their rewards."""

    sequences: Sequences
    scores: Future[Scores]
    filtered: Scored | None = None
    "the responses to replaced prompts"
    metrics: dict[str, float] = field(default_factory=dict)


class Scored(NamedTuple):
    """Responses in groups with their rewards."""

    sequences: Sequences
    scores: Scores


def sample(
    actor: ActorModel,
    reward: RewardModel,
    prompts: Sequence[Prompt],
    config: RunConfig,
    phases: Phases,
    *,
    more: Draw | None = None,
) -> Sampled:
    """Generate responses to the prompts and start scoring them.

    With dynamic sampling, prompts whose rewards are all equal are replaced with prompts from `more` (Yu et al. 2025,
    "DAPO", arXiv 2503.14476) until none is missing or the rounds are used up. The step then has fewer prompts, or those
    of the last round if every round was without differences.
    """
    algorithm, rollout = config.algorithm, config.rollout

    def one_round(number: int, requested: Sequence[Prompt]) -> Sampled:
        early = reward.early_scores()
        with phases("gen", items=len(requested) * algorithm.group_size) as on_progress:
            sequences = actor.generate(
                requested,
                max_new_tokens=config.data.max_response_length,
                group_size=algorithm.group_size,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
                min_p=rollout.min_p,
                seed=seeds.derive(phases.seed, "round", number),
                on_progress=on_progress,
                on_ended=early.add,
            ).result()
        with phases("reward"):
            scores = start_scoring(reward, sequences, actor=actor, early=early)
        return Sampled(sequences=sequences, scores=scores)

    if not algorithm.dynamic_sampling:
        return one_round(0, prompts)
    assert more is not None, "prompts are replaced by further ones"
    rounds: list[Scored] = []
    kept: list[Scored] = []
    requested = prompts
    while requested and len(rounds) < algorithm.max_sampling_rounds:
        sampled = one_round(len(rounds), requested)
        with phases("reward"):
            rounds.append(Scored(sampled.sequences, sampled.scores.result()))
        kept += _only_with_spread(rounds[-1])
        missing = len(prompts) - sum(map(_num_groups, kept))
        requested = more(missing) if missing and len(rounds) < algorithm.max_sampling_rounds else ()
    return _joined(rounds, kept)


def start_scoring(
    reward: RewardModel, sequences: Sequences, *, actor: ActorModel, early: EarlyScores | None = None
) -> Future[Scores]:
    """The scores of responses, computed in the background unless a model on the devices of the actor computes them."""
    scores = reward.compute_rewards(sequences, early=early)
    if reward.uses_device and reward.pool is actor.pool:
        scores.result()
    return scores


def _joined(rounds: Sequence[Scored], kept: Sequence[Scored]) -> Sampled:
    """The kept responses, or those of the last round if none were kept, with the metrics of all rounds."""
    joined, every = join(kept or rounds[-1:]), join(rounds)
    rewards = torch.tensor([reward for reward in every.scores.rewards if reward is not None])
    metrics = {
        "training/num_gen_batches": float(len(rounds)),
        "training/filter_groups/sampled_prompts": float(_num_groups(every)),
        "training/filter_groups/kept_prompts": float(sum(map(_num_groups, kept))),
        "training/filter_groups/zero_spread_groups": _zero_spread(every),
    }
    if len(rewards):
        metrics["training/filter_groups/sampled_score/mean"] = float(rewards.mean())
    scores: Future[Scores] = Future()
    scores.set_result(replace(joined.scores, metrics=every.scores.metrics))
    return Sampled(sequences=joined.sequences, scores=scores, filtered=_without(every, joined), metrics=metrics)


def join(parts: Sequence[Scored]) -> Scored:
    """The responses of several rounds as one."""
    trajectories = [item for part in parts for item in part.sequences.trajectories]
    texts = [text for part in parts for text in part.sequences.texts]
    return Scored(Sequences.from_trajectories(trajectories, texts), join_scores([part.scores for part in parts]))


def prompts_of(sequences: Sequences) -> list[Prompt]:
    """The prompt of each group, in ascending order of the groups."""
    prompts = {item.group: item.prompt for item in sequences.trajectories}
    return [prompts[group] for group in sorted(prompts)]


def _only_with_spread(scored: Scored) -> list[Scored]:
    """The groups in which two rewards differ; an empty list without any."""
    rewards, groups, known = _columns(scored)
    group = group_statistics(rewards, groups=groups, scored=known)
    rows = group.of_rows((group.num_scored > 1) & ~group.equal).nonzero().flatten().tolist()
    return [rows_of(scored, rows)] if rows else []


def _without(scored: Scored, others: Scored) -> Scored | None:
    """The responses whose groups are not among the others; None if there are none."""
    groups = {item.group for item in others.sequences.trajectories}
    rows = [row for row, item in enumerate(scored.sequences.trajectories) if item.group not in groups]
    return rows_of(scored, rows) if rows else None


def rows_of(scored: Scored, rows: Sequence[int]) -> Scored:
    """Some of the responses, with their rewards."""
    trajectories, texts = scored.sequences.trajectories, scored.sequences.texts
    sequences = Sequences.from_trajectories([trajectories[row] for row in rows], [texts[row] for row in rows])
    return Scored(sequences, pick_scores(scored.scores, rows))


def _zero_spread(scored: Scored) -> float:
    rewards, groups, known = _columns(scored)
    return zero_spread_fraction(rewards=rewards, groups=groups, scored=known)


def _columns(scored: Scored) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards with 0 in place of None, group ids, and which rewards are known, each [B]."""
    rewards = scored.scores.rewards
    values = torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64)
    return values, scored.sequences.batch.groups, torch.tensor([reward is not None for reward in rewards])


def _num_groups(scored: Scored) -> int:
    return len({item.group for item in scored.sequences.trajectories})
