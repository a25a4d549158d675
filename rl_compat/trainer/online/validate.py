"""Accuracy on held-out prompts, with its 95 % interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from rl_compat import seeds
from rl_compat.batch import Sequences
from rl_compat.config.types import RunConfig
from rl_compat.rewards.score import Scores
from rl_compat.trainer.online.metrics import mean_interval, proportion_interval
from rl_compat.trajectory import Prompt
from rl_compat.units import counted
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import RewardModel

ACCURACY = "accuracy"
COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The fraction of correct answers (`accuracy`), or the mean of a reward function or of one of its metrics."""

    source: str
    measure: str
    mean: float
    low: float | None
    "of the 95 % interval; None if the values, which are not zeros and ones by nature, are all equal"
    high: float | None
    num_prompts: int
    "with a value"

    def __str__(self) -> str:
        return (
            f"{self.source} {self.measure}: {self.shown(self.mean)} "
            f"({self.interval_text}, {counted(self.num_prompts, 'prompt')})"
        )

    @property
    def interval_text(self) -> str:
        return "all equal" if self.low is None else f"95 % interval {self.interval}"

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return "all equal"
        return f"{self.shown(self.low)} to {self.shown(self.high)}"

    def shown(self, value: float) -> str:
        """Accuracy in percent; a reward as a plain number."""
        return f"{100 * value:.1f} %" if self.measure == ACCURACY else f"{value:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The results of one response per validation prompt."""

    accuracies: tuple[Accuracy, ...]
    mean_response_length: float
    truncated_fraction: float
    num_unscored: int
    "prompts whose reward failed"
    num_prompts: int
    notes: tuple[str, ...] = ()
    "of the rewards, for the user"
    columns: ClassVar = ("data", "measure", "mean", "95 % interval", "prompts")
    size: ClassVar = ""

    @property
    def headline(self) -> tuple[object, ...]:
        """Accuracy and cost by source, and the means of reward functions if none of them judges correctness."""
        judged = {accuracy.source for accuracy in self.accuracies if accuracy.measure == ACCURACY}
        shown = [a for a in self.accuracies if a.measure in (ACCURACY, COST) or a.source not in judged]
        unscored = f"the reward failed on {self.num_unscored} of {counted(self.num_prompts, 'validation prompt')}"
        return (*shown, *([unscored] if self.num_unscored else []))

    def rows(self) -> list[tuple[object, ...]]:
        """The accuracies as rows of a table."""
        return [(a.source, a.measure, a.shown(a.mean), a.interval, a.num_prompts) for a in self.accuracies]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """Metrics under verl's names: accuracy is `val-core/<source>/acc`, reward functions are `val-aux`."""
        metrics = {
            "val-aux/response_length/mean": self.mean_response_length,
            "val-aux/response_length/clip_ratio": self.truncated_fraction,
            "val-aux/reward/unscored": float(self.num_unscored),
        }
        for accuracy in self.accuracies:
            core = accuracy.measure == ACCURACY
            prefix = f"{'val-core' if core else 'val-aux'}/{accuracy.source}/{'acc' if core else accuracy.measure}"
            metrics[f"{prefix}/mean@1"] = accuracy.mean
            if accuracy.low is not None and accuracy.high is not None:
                metrics[f"{prefix}/low95@1"] = accuracy.low
                metrics[f"{prefix}/high95@1"] = accuracy.high
        return metrics


def validate(
    actor: ActorModel,
    reward: RewardModel,
    prompts: Sequence[Prompt],
    config: RunConfig,
    *,
    cost: RewardModel | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Validation:
    """Generate one response per prompt and score it with every reward function and, as `cost`, with the cost.

    The groups of the responses are used again, so that a validation changes no number of a run.
    """
    early = reward.early_scores()
    sequences = actor.generate(
        prompts,
        max_new_tokens=config.data.max_response_length,
        temperature=config.trainer.validation_temperature,
        seed=seeds.derive(config.trainer.seed, "validation"),
        on_progress=on_progress,
        on_ended=early.add,
    ).result()
    actor.return_groups(sequences)
    scores = reward.compute_rewards(sequences, early=early).result()
    costs = {} if cost is None else {COST: cost.compute_rewards(sequences).result().rewards}
    batch = sequences.batch
    return Validation(
        accuracies=tuple(
            _accuracy(source, measure, values, binary=measure in (ACCURACY, *scores.binary))
            for (source, measure), values in _by_source(sequences, scores, costs).items()
        ),
        mean_response_length=float(batch.response_lengths.float().mean()),
        truncated_fraction=float(batch.truncated.float().mean()),
        num_unscored=scores.rewards.count(None),
        num_prompts=len(prompts),
        notes=scores.notes,
    )


def _by_source(
    sequences: Sequences, scores: Scores, costs: Mapping[str, Sequence[float | None]]
) -> dict[tuple[str, str], list[float]]:
    """Known values, by data source and measure."""
    extras = {name: values for name, values in scores.numbers().items() if name != "acc"}
    measures: dict[str, Sequence[float | bool | None]] = {
        ACCURACY: scores.correct,
        **extras,
        **scores.components,
        **costs,
    }
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for measure, values in measures.items():
        for trajectory, value in zip(sequences.trajectories, values, strict=True):
            if value is not None:
                found[trajectory.prompt.data_source, measure].append(float(value))
    return found


def _accuracy(source: str, measure: str, values: Sequence[float], *, binary: bool) -> Accuracy:
    """The mean of the values; `binary` are those that can only be 0 and 1."""
    interval = proportion_interval(sum(values), len(values)) if binary else mean_interval(values)
    low, high = interval or (None, None)
    return Accuracy(
        source=source,
        measure=measure,
        mean=sum(values) / len(values),
        low=low,
        high=high,
        num_prompts=len(values),
    )
