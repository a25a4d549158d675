"""The learner: a model that is trained on offline data, by SFT, on preferences, or as a reward model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.data.encode.items import ItemBatch
from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.models.lora import adapter_disabled
from rl_compat.models.scalar import load_scoring_model
from rl_compat.objectives.offline import Counts, Objective, objective_of, value_of_each
from rl_compat.training.engine import PolicyEngine, ValueEngine
from rl_compat.training.micro_batches import Layout
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.types import BatchTotals, TokenOutputs
from rl_compat.workers.mini_batches import balance_metrics, mean_metrics, over_ranks, own_share
from rl_compat.workers.setup import Setup, optimizer_settings
from rl_compat.workers.trained import TrainedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """The settings of a learner."""

    model: LoadSettings
    objective: Objective
    mini_batch_size: int
    "items per optimizer step"
    optimizer: OptimizerSettings | None = None
    "None for evaluation only"
    pack_tokens: int | None = None
    "examples share packs of this many tokens; None pads each to the longest"


def learner_settings(setup: Setup, *, num_batches: int | None, trains: bool = True) -> LearnerSettings:
    """The model that trains on offline data; without an optimizer if it is only evaluated."""
    config = setup.config
    packs = config.algorithm.name == "sft" and config.algorithm.sft.packing
    optimizer = optimizer_settings(config, config.optimizer.actor_lr, num_batches)
    return LearnerSettings(
        model=setup.load_settings("actor"),
        objective=objective_of(config.algorithm),
        mini_batch_size=config.trainer.mini_batch_size,
        optimizer=optimizer if trains else None,
        pack_tokens=config.data.max_prompt_length + config.data.max_response_length if packs else None,
    )


class LearnerWorker(TrainedWorker):
    """The learner on one device."""

    engine: PolicyEngine | ValueEngine

    def __init__(self, settings: LearnerSettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        self.objective = settings.objective
        self.engine = _engine(settings, ranks)

    @dispatch(split=("batch",))
    def values(self, *, batch: ItemBatch) -> Tensor:
        """The log-probability of the learned tokens of each example, or its score, [B, 1]."""
        with self.engine.onloaded():
            return self._values(batch)[:, None]

    @dispatch(split=("batch",))
    def reference_values(self, *, batch: ItemBatch) -> Tensor:
        """The same without adapters. For a model without adapters, call it before its weights change."""
        with self.engine.onloaded(), adapter_disabled(self.engine.model):
            return self._values(batch)[:, None]

    @dispatch()
    def update(self, *, batch: ItemBatch, mismatched: ItemBatch | None, seed: int) -> dict[str, float]:
        """Train on all mini-batches of the batch. Returns the mean of their metrics.

        Every rank gets the whole batch and trains on its share of each mini-batch. `mismatched` has one example for
        each item of the batch, with the log-probabilities of the reference.
        """
        size = self.settings.mini_batch_size
        with self.learning(seed=seed):
            steps = [
                self._step(mini_batch, mismatched)
                | balance_metrics(mini_batch, self.engine.ranks, role=self.settings.model.role.role)
                for mini_batch in self.mini_batches(batch, prompts_per_mini_batch=size, num_epochs=1, seed=seed)
            ]
        return mean_metrics(steps, prefix="train/")

    def _step(self, batch: ItemBatch, mismatched: ItemBatch | None) -> dict[str, float]:
        log_ratios = None
        if mismatched is not None:
            mismatched = mismatched.select(batch.groups.tolist())
            assert mismatched.reference is not None
            values = over_ranks(self._values, mismatched, self.engine.ranks)
            log_ratios = (values - mismatched.reference).to(self.settings.model.role.device)
        loss = partial(_loss, objective=self.objective, counts=Counts.of(batch), mismatched=log_ratios)
        share = own_share(batch, self.engine.ranks)
        if isinstance(self.engine, PolicyEngine):
            return self.engine.update(share, loss=loss, temperature=1.0)
        return self.engine.update(share, loss=loss)

    def _values(self, batch: ItemBatch) -> Tensor:
        """Values [B] on the CPU, without gradient."""
        if isinstance(self.engine, PolicyEngine):
            return value_of_each(batch, self.engine.logprobs(batch, temperature=1.0).logprobs)
        return value_of_each(batch, self.engine.values(batch))


def _engine(settings: LearnerSettings, ranks: Ranks) -> PolicyEngine | ValueEngine:
    role, objective = settings.model.role, settings.objective
    layout = Layout(whole_groups=objective.compares, pack_tokens=settings.pack_tokens)
    if objective.scores:
        scoring = load_scoring_model(settings.model)
        return ValueEngine(scoring, role=role, optimizer=settings.optimizer, layout=layout, ranks=ranks)
    policy = load_causal_lm(settings.model)
    return PolicyEngine(policy, role=role, optimizer=settings.optimizer, layout=layout, ranks=ranks)


def _loss(
    micro_batch: Batch,
    outputs: TokenOutputs | Tensor,
    totals: BatchTotals,
    *,
    objective: Objective,
    counts: Counts,
    mismatched: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    del totals
    assert isinstance(micro_batch, ItemBatch)
    per_token = outputs.logprobs if isinstance(outputs, TokenOutputs) else outputs
    judged = objective.judge(micro_batch, value_of_each(micro_batch, per_token), counts, mismatched=mismatched)
    return judged.loss, {("train/loss" if name == "loss" else name): part for name, part in judged.shares.items()}


class LearnerModel:
    """The learner as one object, on any number of workers."""

    def __init__(self, settings: LearnerSettings, *, pool: ResourcePool) -> None:
        self.settings = settings
        self.group: WorkerGroup[LearnerWorker] = pool.start(
            lambda place: LearnerWorker(settings, place.ranks), tensor_parallel=settings.model.role.tensor_parallel
        )

    def values(self, batch: ItemBatch) -> Tensor:
        """The log-probability of the learned tokens of each example, or its score, [B]."""
        return self.group.run(LearnerWorker.values, batch=batch).result()[:, 0]

    def reference_values(self, batch: ItemBatch) -> Tensor:
        """The same without adapters, [B]. For a model without adapters, call it before its weights change."""
        return self.group.run(LearnerWorker.reference_values, batch=batch).result()[:, 0]

    def update(self, batch: ItemBatch, *, mismatched: ItemBatch | None = None, seed: int = 0) -> dict[str, float]:
        """Learn from a batch; returns the metrics."""
        return self.group.run(LearnerWorker.update, batch=batch, mismatched=mismatched, seed=seed).result()

    def judge(self, batch: ItemBatch, values: Tensor, *, mismatched: Tensor | None = None) -> dict[str, float]:
        """The metrics of examples with known values."""
        judged = self.settings.objective.judge(batch, values, Counts.of(batch), mismatched=mismatched)
        return {name: float(value) for name, value in judged.shares.items()}
