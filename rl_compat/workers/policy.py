"""The policy that learns: log-probabilities of its tokens, and updates from their advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rl_compat import seeds
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig
from rl_compat.distributed.group import dispatch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.models.files.export import export_model
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.models.lora import adapter_disabled
from rl_compat.objectives.actor_critic import LossSettings, policy_loss, policy_loss_inputs
from rl_compat.objectives.experience import correct, corrects
from rl_compat.resharding.mapped import MappedWeights, WeightMapper, joined_parts
from rl_compat.resharding.publish import PublishedWeights, WeightPublisher, joined
from rl_compat.resharding.sharded import ShardedSource
from rl_compat.resharding.source import SharedStorage, WeightSource
from rl_compat.resharding.store import WeightStore
from rl_compat.rollout.inference import ignored_generation_settings
from rl_compat.training.engine import PolicyEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.mini_batches import balance_metrics, mean_metrics, over_ranks, own_share
from rl_compat.workers.trained import TrainedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The settings of a policy worker."""

    model: LoadSettings
    optimizer: OptimizerSettings | None = None
    "None for a policy that only generates"
    loss: LossSettings = field(default_factory=LossSettings)
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    temperature: float
    "temperature of every log-probability"
    num_epochs: int
    mini_batch_size: int | None = None
    "prompts per optimizer step; None is the whole batch"
    tokenizer_folder: Path | None = None
    "where the tokenizer came from; None is the folder of the model"


class PolicyWorker(TrainedWorker):
    """The policy on one device. Its `version` is the policy version."""

    engine: PolicyEngine

    def __init__(self, settings: PolicySettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        model = load_causal_lm(settings.model)
        self.engine = PolicyEngine(model, role=settings.model.role, optimizer=settings.optimizer, ranks=ranks)
        self._source = _source_of(self.engine, version=self.version)
        self._publisher: WeightPublisher | None = None
        self._mapper: WeightMapper | None = None
        ignored = ignored_generation_settings(model)
        if ignored:
            listed = ", ".join(f"`{name}={value}`" for name, value in ignored.items())
            self.engine.notes.append(f"the model's generation_config is not used for sampling: {listed}")

    def weight_source(self) -> WeightSource:
        """The weights for a rollout engine in the same process. The source follows every change."""
        return self._source

    @dispatch()
    def revision(self) -> int:
        """A number that changes whenever the weights change."""
        return self._source.revision

    @dispatch(merge=lambda results, shares: joined(results))
    def publish(self, *, store: WeightStore, dtypes: Mapping[str, torch.dtype]) -> PublishedWeights:
        """Leave the weights in a store for a rollout on another pool, in the rollout's dtypes: what has changed."""
        if self._publisher is None:
            self._publisher = WeightPublisher(self._parts, store, dtypes=dtypes)
        return self._publisher.publish(version=self.version)

    @dispatch(merge=lambda results, shares: joined_parts(results))
    def map_weights(self) -> MappedWeights:
        """Tell where the weights are, for a rollout on other GPUs of this machine."""
        if self._mapper is None:
            self._mapper = WeightMapper(self._parts)
        return self._mapper.publish(version=self.version)

    @property
    def _parts(self) -> ShardedSource:
        source = self._source
        return _sharded(self.engine, version=self.version) if isinstance(source, SharedStorage) else source

    @dispatch(split=("batch",))
    def logprobs(self, *, batch: Batch) -> Tensor:
        """Log-probability of each response token under the current weights, [B, T]."""
        with self.engine.onloaded():
            return self._current_logprobs(batch)

    @dispatch(split=("batch",))
    def token_outputs(self, *, batch: Batch) -> dict[str, Tensor]:
        """`logprobs` and `sum_pi_squared` of each response token under the current weights, [B, T]."""
        with self.engine.onloaded():
            outputs = self.engine.logprobs(batch, temperature=self.settings.temperature, wanted=("sum_pi_squared",))
        assert outputs.sum_pi_squared is not None
        return {"logprobs": outputs.logprobs, "sum_pi_squared": outputs.sum_pi_squared}

    @dispatch(split=("batch",))
    def reference_logprobs(self, *, batch: Batch) -> Tensor:
        """The same with the adapters disabled: the base model, which is the reference with LoRA."""
        with self.engine.onloaded(), adapter_disabled(self.engine.model):
            return self._current_logprobs(batch)

    @dispatch()
    def update(self, *, batch: Batch, seed: int) -> dict[str, float]:
        """Train on all epochs and mini-batches of the batch. Returns the mean of their metrics.

        Every rank gets the whole batch and trains on its share of each mini-batch. Raises ConfigError for a batch
        without `old_logprobs` that takes more than one optimizer step.
        """
        settings = self.settings
        if not self._takes_one_step(batch):
            batch.require("old_logprobs", reader="an update of more than one optimizer step")
        loss = partial(policy_loss, settings=settings.loss)
        batches = self.mini_batches(
            batch,
            prompts_per_mini_batch=settings.mini_batch_size or len(batch),
            num_epochs=settings.num_epochs,
            seed=seed,
        )
        steps = []
        with self.learning(seed=seed):
            for number, whole in enumerate(batches):
                mini_batch, metrics = self._prepared(
                    whole, seed=seeds.derive(seed, "selection", number), first=number == 0
                )
                metrics |= self.engine.update(
                    own_share(mini_batch, self.engine.ranks),
                    loss=loss,
                    temperature=settings.temperature,
                    wanted=("entropy",),
                )
                steps.append(metrics | balance_metrics(mini_batch, self.engine.ranks, role="actor"))
        self._source.changed(version=self.version)
        return mean_metrics(steps, prefix="actor/")

    def _prepared(self, mini_batch: Batch, *, seed: int, first: bool) -> tuple[Batch, dict[str, float]]:
        """A whole mini-batch with the fields that depend on all of it, and metrics.

        The fields are the tokens that the loss selects and, with `off_policy.bypass`, importance weights and
        rejection under the current weights. Before the first optimizer step the old log-probabilities are the current
        ones, unless they come from the rollout.
        """
        settings = self.settings
        select = POLICY_LOSSES[settings.loss.policy_loss].select
        bypass = settings.off_policy.bypass
        corrected_here = bypass and corrects(settings.off_policy)
        if select is None and not corrected_here:
            return mini_batch, {}
        logprobs = mini_batch.old_logprobs if first and not bypass else None
        if logprobs is None:
            logprobs = over_ranks(self._current_logprobs, mini_batch, self.engine.ranks)
        metrics: dict[str, float] = {}
        if corrected_here:
            corrected, metrics = correct(mini_batch.with_(old_logprobs=logprobs), settings.off_policy)
            mini_batch = corrected.with_(old_logprobs=mini_batch.old_logprobs)
        if select is not None:
            selection = select(policy_loss_inputs(mini_batch, logprobs, settings.loss), seed)
            mini_batch = mini_batch.with_(selection=selection)
        return mini_batch, metrics

    def _current_logprobs(self, batch: Batch) -> Tensor:
        return self.engine.logprobs(batch, temperature=self.settings.temperature).logprobs

    def _takes_one_step(self, batch: Batch) -> bool:
        num_groups = len(batch.groups.unique())
        return self.settings.num_epochs == 1 and num_groups <= (self.settings.mini_batch_size or num_groups)

    @dispatch()
    def export(self, *, output: Path) -> Path:
        """Write the model, adapters merged, as a Hugging Face folder. Raises ModelError or CheckpointError."""
        settings = self.settings
        with self.writing(output) as writes, self.engine.onloaded():
            return export_model(
                self.engine.model,
                source_folder=settings.model.folder,
                output=output,
                tokenizer_folder=settings.tokenizer_folder,
                writes=writes,
            )

    @dispatch()
    def load_state(self, *, folder: Path) -> None:
        super().load_state(folder=folder)
        self._source.changed(version=self.version)

    @dispatch()
    def load_weights(self, *, folder: Path) -> None:
        super().load_weights(folder=folder)
        self._source.changed(version=self.version)

    @dispatch()
    def put_back_state(self) -> None:
        super().put_back_state()
        self._source.changed(version=self.version)


def _source_of(engine: PolicyEngine, *, version: int) -> SharedStorage | ShardedSource:
    """The weights of a policy for rollouts: the tensors themselves, or the shards of all ranks."""
    if engine.role.num_shards == 1:
        return SharedStorage(engine.model, version=version, resident=engine.onloaded)
    return _sharded(engine, version=version)


def _sharded(engine: PolicyEngine, *, version: int) -> ShardedSource:
    """What each rank holds, one rank in one process included."""
    return ShardedSource(engine.model, version=version, group=engine.ranks.group, resident=engine.onloaded)
