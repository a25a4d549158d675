"""Loss, margins and accuracy on held-out rows with responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_compat.data.encode.items import Item, ItemBatch, item_batch, mismatched
from rl_compat.objectives.offline import objective_of
from rl_compat.trainer.online.metrics import proportion_interval
from rl_compat.workers.learner import LearnerModel
from rl_compat.workers.setup import Setup

CHUNK_ITEMS = 64
ACCURACY = "rewards/accuracies"
MARGIN = "rewards/margins"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The metrics of a learner on the rows."""

    values: dict[str, float]
    "the loss, and for preferences also margins and accuracy, as in training"
    num_rows: int
    num_tokens: int
    "that training would learn"
    is_text: bool
    "whether the loss is a mean over tokens"

    columns: ClassVar = ("measure", "value", "95 % interval")
    notes: ClassVar = ()

    @property
    def headline(self) -> tuple[str, ...]:
        return (f"held-out {', '.join(f'{name} {shown}' for name, shown, _ in self.rows())} ({self.size})",)

    @property
    def size(self) -> str:
        return f"{self.num_tokens} tokens in {self.num_rows} rows" if self.is_text else f"{self.num_rows} rows"

    def as_json(self) -> dict[str, Any]:
        return self.metrics() | {"num_rows": self.num_rows}

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value, and 95 % interval if there is one."""
        loss = self.values["loss"]
        rows = [("loss", f"{loss:.4f}", "")]
        if self.is_text:
            rows.append(("perplexity", f"{math.exp(min(loss, 700.0)):.4g}", ""))
        if MARGIN in self.values:
            rows.append(("margin", f"{self.values[MARGIN]:.4f}", ""))
        if ACCURACY in self.values:
            low, high = self.interval
            rows.append(
                ("accuracy", f"{100 * self.values[ACCURACY]:.1f} %", f"{100 * low:.1f} % to {100 * high:.1f} %")
            )
        return rows

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy."""
        return proportion_interval(self.values[ACCURACY] * self.num_rows, self.num_rows)

    def metrics(self) -> dict[str, float]:
        metrics = {f"eval/{name}": value for name, value in self.values.items()}
        if self.is_text:
            metrics["eval/perplexity"] = math.exp(min(self.values["loss"], 700.0))
        if ACCURACY in self.values:
            metrics[f"eval/{ACCURACY}/low95"], metrics[f"eval/{ACCURACY}/high95"] = self.interval
        return metrics


class HeldOutRows:
    """Held-out rows, with their reference log-probabilities."""

    def __init__(self, setup: Setup, items: Sequence[Item]) -> None:
        objective = objective_of(setup.config.algorithm)
        self.items = items
        self._default_margin = setup.config.algorithm.reward_model.margin
        self._mismatched = mismatched(items) if objective.needs_mismatched and items else []
        self._needs_reference = objective.needs_reference
        self._is_text = not (objective.compares or objective.needs_mismatched)
        self._reference: Tensor | None = None
        self._mismatched_reference: Tensor | None = None

    def measure_reference(self, learner: LearnerModel, *, on_progress: Callable[[int], None]) -> None:
        """Compute the reference values. Call it before the learner's weights change."""
        if self._needs_reference and self.items:
            self._reference = values_of(learner.reference_values, self.items, on_progress=on_progress)
        if self._mismatched:
            self._mismatched_reference = values_of(learner.reference_values, self._mismatched)

    def measure(self, learner: LearnerModel, *, on_progress: Callable[[int], None]) -> HeldOut:
        """Evaluate all rows as in training, without changing a weight."""
        values = values_of(learner.values, self.items, on_progress=on_progress)
        batch = item_batch(self.items, default_margin=self._default_margin).with_(reference=self._reference)
        log_ratios = None
        if self._mismatched_reference is not None:
            log_ratios = values_of(learner.values, self._mismatched) - self._mismatched_reference
        return HeldOut(
            values=learner.judge(batch, values, mismatched=log_ratios),
            num_rows=len(self.items),
            num_tokens=int(batch.response_mask.sum()),
            is_text=self._is_text,
        )


def values_of(
    compute: Callable[[ItemBatch], Tensor], items: Sequence[Item], *, on_progress: Callable[[int], None] | None = None
) -> Tensor:
    """The values of `compute` for each example of each item, [examples]."""
    found = []
    for first in range(0, len(items), CHUNK_ITEMS):
        found.append(compute(item_batch(items[first : first + CHUNK_ITEMS])))
        if on_progress is not None:
            on_progress(min(len(items), first + CHUNK_ITEMS))
    return torch.cat(found)
