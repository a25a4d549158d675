"""The groups of a rollout, one by one and together again: what a step takes by load, or drops."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from rl_compat.batch import Sequences
from rl_compat.config.types import RunConfig
from rl_compat.rewards.types import Scores, join_scores, pick_scores
from rl_compat.trainer.loop import Rollout
from rl_compat.trainer.online.sampling import Scored, join, rows_of

SUMMED = ("async/tokens_lost",)
"metrics of a rollout that are added up"


class Loads:
    """How many prompts fill a step whose responses together have at most `trainer.batch_tokens`."""

    def __init__(self, config: RunConfig) -> None:
        trainer, data = config.trainer, config.data
        self.budget = trainer.batch_tokens if trainer.flow == "async" else None
        "None for steps of a fixed number of prompts"
        self._least = 1 / trainer.batch_size
        longest = config.algorithm.group_size * (data.max_prompt_length + data.max_response_length)
        self._mean = 1.0 if self.budget is None else max(self._least, longest / self.budget)
        "load of a prompt: the longest possible, until there are measured ones"
        self._is_measured = False

    @property
    def num_prompts(self) -> int:
        """The number of prompts that are expected to fill a step."""
        most = round(1 / self._least)
        return most if self.budget is None else max(1, min(most, int(1 / self._mean + 1e-9)))

    def divided(self, rollout: Rollout) -> list[tuple[Rollout, float]]:
        """The groups of a rollout with the share of a step that each fills, or all of it as a step."""
        if self.budget is None:
            return [(rollout, 1.0)]
        groups = divided(rollout)
        loads = [max(self._least, num_tokens(group) / self.budget) for group in groups]
        mean = sum(loads) / len(loads)
        self._mean = (self._mean + mean) / 2 if self._is_measured else mean
        self._is_measured = True
        return list(zip(groups, loads, strict=True))


def num_tokens(rollout: Rollout) -> int:
    """Of prompts and responses."""
    return sum(rollout.sequences.batch.sequence_lengths())


def divided(rollout: Rollout) -> list[Rollout]:
    """The groups of a rollout, once they are scored. What was measured for all of them stays with the first."""
    groups = [trajectory.group for trajectory in rollout.sequences.trajectories]
    scored = Scored(rollout.sequences, rollout.scores.result())
    costs, greedy = None if rollout.costs is None else rollout.costs.result(), rollout.greedy_rewards
    parts = []
    for place, group in enumerate(dict.fromkeys(groups)):
        rows = [row for row, other in enumerate(groups) if other == group]
        own = rows_of(scored, rows)
        parts.append(
            replace(
                rollout,
                sequences=own.sequences,
                scores=_done(own.scores, counts=place == 0),
                costs=None if costs is None else _done(pick_scores(costs, rows), counts=place == 0),
                greedy_rewards=None if greedy is None else (greedy[sorted(set(groups)).index(group)],),
                metrics=rollout.metrics if place == 0 else {},
            )
        )
    return parts


def joined(parts: Sequence[Rollout]) -> Rollout:
    """Several rollouts as one."""
    if len(parts) == 1:
        return parts[0]
    all_ = join([Scored(part.sequences, part.scores.result()) for part in parts])
    costs = [part.costs.result() for part in parts if part.costs is not None]
    greedy = [reward for part in parts for reward in part.greedy_rewards or ()]
    metrics: dict[str, float] = {}
    for part in parts:
        lost = {name: metrics.get(name, 0.0) + part.metrics[name] for name in SUMMED if name in part.metrics}
        metrics |= part.metrics | lost
    return Rollout(
        sequences=all_.sequences,
        scores=_done(all_.scores),
        costs=_done(join_scores(costs)) if costs else None,
        greedy_rewards=tuple(greedy) if greedy else None,
        metrics=metrics,
    )


def dropped_metrics(dropped: Sequence[Rollout]) -> dict[str, float]:
    """Prompts and tokens of responses that nothing was learned from."""
    return {
        "async/dropped/prompts": float(sum(num_groups(part.sequences) for part in dropped)),
        "async/dropped/tokens": float(sum(int(part.sequences.batch.response_lengths.sum()) for part in dropped)),
    }


def num_groups(sequences: Sequences) -> int:
    return len({trajectory.group for trajectory in sequences.trajectories})


def _done(scores: Scores, *, counts: bool = True) -> Future[Scores]:
    future: Future[Scores] = Future()
    future.set_result(scores if counts else replace(scores, metrics={}))
    return future
