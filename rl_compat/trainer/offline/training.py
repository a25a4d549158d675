"""The recipe of training on offline data: SFT, preferences and reward models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_compat import seeds
from rl_compat.data.encode.items import Item, ItemBatch, item_batch, mismatched
from rl_compat.distributed.group import WorkerGroup
from rl_compat.objectives.offline import objective_of
from rl_compat.trainer.offline.held_out import HeldOut, HeldOutRows
from rl_compat.trainer.offline.reference_values import ReferenceValues, identity_of, weights_digest
from rl_compat.trainer.phases import Phases
from rl_compat.trainer.recipe import Measure
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.setup.offline import OfflinePrepared, load_learner
from rl_compat.workers.learner import LearnerModel, LearnerWorker
from rl_compat.workers.trained import TrainedWorker

MARGIN = Measure(metric="rewards/margins", title="mean margin of the rewards", key="margins")
LOSS = Measure(metric="train/loss", title="mean loss", key="losses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The items of a step as tensors, with the mismatched items that the loss compares them with."""

    items: tuple[Item, ...]
    batch: ItemBatch
    mismatched: ItemBatch | None


class Offline:
    """A model that learns from offline data."""

    staleness = 1
    "the rows of the next step do not depend on weights"
    calls = 1

    def __init__(self, prepared: OfflinePrepared) -> None:
        self.prepared = prepared
        self.config = prepared.setup.config
        self.objective = objective_of(self.config.algorithm)
        self.measure = MARGIN if self.objective.compares or self.objective.needs_mismatched else LOSS
        items = prepared.training.items
        self.mismatched = mismatched(items) if self.objective.needs_mismatched else []
        self.held_out = HeldOutRows(prepared.setup, prepared.held_out.items)
        self.order_from_start = copy.deepcopy(prepared.order)
        self.learner: LearnerModel
        self.reference: ReferenceValues
        self.phases: Phases

    def summary(self) -> str:
        plan, config = self.prepared.setup.plan, self.config
        pool = plan.pool_of("actor")
        return (
            f"{config.algorithm.name} on {pool.device_name} with profile `{pool.profile}`: "
            f"{plan.roles['actor'].compute_dtype} training, {self.prepared.total_steps} steps of "
            f"{config.trainer.batch_size} of {len(self.prepared.training.items)} rows"
        )

    def load(self, phases: Phases, *, step: int) -> None:
        """The model, and its initial weights as its own reference."""
        self.phases = phases
        phases.reporter.phase("loading the model")
        self.learner = load_learner(self.prepared.setup, num_batches=self.prepared.total_steps)
        self.start_earlier(step)

    def start_earlier(self, step: int) -> None:
        if self.objective.needs_reference:
            self._measure_reference(step)

    def _measure_reference(self, step: int) -> None:
        """Compute the reference values of the rows of the steps after this one, and of the held-out rows."""
        items, others = self.prepared.training.items, self.mismatched
        folder, setup = RunFolder(Path(self.config.trainer.output_dir)).path, self.prepared.setup
        role = setup.plan.roles["actor"]
        weights = weights_digest(setup.source.folder, cache=folder / "reference.weights.json")
        self.reference = ReferenceValues(
            folder / "reference.safetensors",
            identity=identity_of(
                weights, role.storage_dtype, role.compute_dtype, role.quantization, items=[items, others]
            ),
        )
        groups = self._coming_groups(step)
        for name, group in (("training", items), ("mismatched", others)):
            if group:
                count = sum(map(len, self.reference.missing(name, group, groups)))
                with self.phases("ref", items=count) as on_progress:
                    self.reference.complete(name, group, groups, self.learner.reference_values, on_progress=on_progress)
        with self.phases("ref", items=len(self.held_out.items)) as on_progress:
            self.held_out.measure_reference(self.learner, on_progress=on_progress)

    def _coming_groups(self, step: int) -> list[list[int]]:
        """The rows of the steps after `step`, grouped by the step of the run that first uses them."""
        order, total = copy.deepcopy(self.order_from_start), self.prepared.total_steps
        groups: list[list[int]] = []
        seen: set[int] = set()
        coming: set[int] = set()
        for number in range(total):
            rows = next(order)
            groups.append([row for row in dict.fromkeys(rows) if row not in seen])
            seen.update(rows)
            if number >= step:
                coming.update(rows)
                if len(coming) == len(self.prepared.training.items):
                    break
        return [group for group in groups if not coming.isdisjoint(group)]

    @property
    def draw_size(self) -> int:
        return self.config.trainer.batch_size

    def sample(self, rows: Sequence[int], *, draw: int, more: Callable[[int], Sequence[int]]) -> Gathered:
        del draw, more
        items = [self.prepared.training.items[row] for row in rows]
        batch = item_batch(items, default_margin=self.config.algorithm.reward_model.margin)
        mismatched = None
        if self.objective.needs_reference:
            batch = self.reference.attached("training", batch, rows)
        if self.mismatched:
            mismatched = self.reference.attached("mismatched", item_batch([self.mismatched[row] for row in rows]), rows)
        return Gathered(items=tuple(items), batch=batch, mismatched=mismatched)

    def divide(self, sampled: Gathered) -> list[tuple[Gathered, float]]:
        return [(sampled, 1.0)]

    def learning(self) -> AbstractContextManager[None]:
        return nullcontext()

    def collect(self, parts: Sequence[Gathered], *, dropped: Sequence[Gathered], step: int) -> Gathered:
        del dropped, step
        (gathered,) = parts
        return gathered

    def learn(self, collected: Gathered, *, step: int) -> dict[str, float]:
        with self.phases("update_actor"):
            return self.learner.update(
                collected.batch,
                mismatched=collected.mismatched,
                seed=seeds.derive(self.config.trainer.seed, "update", step),
            )

    def describe(self, collected: Gathered, seconds: Mapping[str, float]) -> dict[str, float]:
        lengths = collected.batch.sequence_lengths()
        metrics = {f"timing_s/{phase}": spent for phase, spent in seconds.items()}
        return metrics | {
            "train/num_tokens": float(collected.batch.response_mask.sum()),
            "sequence_length/mean": sum(lengths) / len(lengths),
            "sequence_length/max": float(max(lengths)),
            "perf/total_num_tokens": float(sum(lengths)),
            "perf/time_per_step": seconds["step"],
            "perf/throughput": sum(lengths) / seconds["step"],
        }

    def samples(self, collected: Gathered, count: int) -> list[dict[str, Any]]:
        """The rows as text: the prompt, and the learned tokens of the response."""
        return [self._sample(item) for item in collected.items[:count]]

    def _sample(self, item: Item) -> dict[str, Any]:
        tokenizer = self.prepared.setup.tokenizer.tokenizer
        if self.objective.scores:
            texts = [tokenizer.decode(list(example.prompt_ids)) for example in item.examples]
            return {"row": item.row, "chosen": texts[0], "rejected": texts[1], "margin": item.margin}
        learned = [
            tokenizer.decode([token for token, is_learned in pairs if is_learned])
            for pairs in (zip(example.response_ids, example.learned, strict=True) for example in item.examples)
        ]
        sample = {"row": item.row, "prompt": tokenizer.decode(list(item.examples[0].prompt_ids))}
        if self.objective.compares:
            return sample | {"chosen": learned[0], "rejected": learned[1]}
        label = {"label": item.preferred[0]} if self.objective.needs_mismatched else {}
        return sample | {"response": learned[0], "num_tokens": sum(item.examples[0].learned)} | label

    def validate(self) -> HeldOut | None:
        if not self.held_out.items:
            return None
        with self.phases("testing", items=len(self.held_out.items)) as on_progress:
            return self.held_out.measure(self.learner, on_progress=on_progress)

    @property
    def trained(self) -> dict[str, WorkerGroup[TrainedWorker]]:
        return {"actor": self.learner.group}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    def save_files(self, folder: Path) -> None:
        del folder

    def load_files(self, folder: Path) -> None:
        del folder

    def take_notes(self) -> list[str]:
        notes: list[str] = self.learner.group.run(LearnerWorker.take_notes).result()
        return notes

    def close(self) -> None:
        """Nothing was started."""
