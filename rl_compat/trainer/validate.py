"""Accuracy on held-out prompts, with its 95 % interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_compat.trainer.metrics import mean_interval
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import RewardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The mean of one reward function over the prompts of one source."""

    source: str
    function: str
    mean: float
    low: float
    high: float
    num_prompts: int

    def __str__(self) -> str:
        return (
            f"{self.source} {self.function}: {100 * self.mean:.1f} % "
            f"(95 % interval {100 * self.low:.1f} to {100 * self.high:.1f}, {self.num_prompts} prompts)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    accuracies: tuple[Accuracy, ...]
    mean_response_length: float
    truncated_fraction: float

    def metrics(self) -> dict[str, float]:
        """Under the usual names: the first function of a source is `val-core`, the others `val-aux`."""
        metrics = {
            "val-aux/response_length/mean": self.mean_response_length,
            "val-aux/response_length/clip_ratio": self.truncated_fraction,
        }
        seen: set[str] = set()
        for accuracy in self.accuracies:
            name = accuracy.function if accuracy.source in seen else "acc"
            group = "val-aux" if accuracy.source in seen else "val-core"
            seen.add(accuracy.source)
            prefix = f"{group}/{accuracy.source}/{name}"
            metrics[f"{prefix}/mean@1"] = accuracy.mean
            metrics[f"{prefix}/low95@1"] = accuracy.low
            metrics[f"{prefix}/high95@1"] = accuracy.high
        return metrics


def validate(
    actor: ActorModel,
    reward: RewardModel,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    on_progress: Callable[[int], None] | None = None,
) -> Validation:
    """One response to each prompt, scored by every reward function."""
    sequences = actor.generate(
        prompts, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, on_progress=on_progress
    )
    scores = reward.compute_rewards(sequences).result()
    by_source: dict[tuple[str, str], list[float]] = defaultdict(list)
    for function, values in scores.components.items():
        for trajectory, value in zip(sequences.trajectories, values, strict=True):
            if value is not None:
                by_source[trajectory.prompt.data_source, function].append(value)
    accuracies = []
    for (source, function), values in by_source.items():
        low, high = mean_interval(values)
        accuracies.append(
            Accuracy(
                source=source,
                function=function,
                mean=sum(values) / len(values),
                low=low,
                high=high,
                num_prompts=len(values),
            )
        )
    batch = sequences.batch
    return Validation(
        accuracies=tuple(accuracies),
        mean_response_length=float(batch.response_lengths.float().mean()),
        truncated_fraction=float(batch.truncated.float().mean()),
    )
