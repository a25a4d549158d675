"""The critic: the value of the state before each response token, learned from the returns."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Unpack

from torch import Tensor

from rl_compat.batch import Batch, Sequences
from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import CheckpointError
from rl_compat.models.files.atomic import fill_folder
from rl_compat.models.files.export import check_output
from rl_compat.models.load import LoadSettings
from rl_compat.models.scalar import ValueModel, load_value_model
from rl_compat.objectives.actor_critic import LossSettings, critic_loss
from rl_compat.planning.types import RoleName
from rl_compat.training.engine import ValueEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.workers.mini_batches import balance_metrics, mean_metrics, own_share
from rl_compat.workers.options import CriticOptions, option_keys, role_values
from rl_compat.workers.role import Role, batch_of, check_update
from rl_compat.workers.setup import Planned, loss_settings, optimizer_settings
from rl_compat.workers.shared_plan import SharedPlan
from rl_compat.workers.trained import TrainedWorker, copy_state


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """The settings of a critic worker."""

    model: LoadSettings
    optimizer: OptimizerSettings
    loss: LossSettings = field(default_factory=LossSettings)
    num_epochs: int
    mini_batch_size: int | None = None
    "prompts per optimizer step; None is the whole batch"


def critic_settings(setup: Planned, *, role: RoleName = "critic", num_batches: int | None = None) -> CriticSettings:
    """The settings of the critic or, with `role="cost_critic"`, of the cost critic."""
    config = setup.config
    return CriticSettings(
        model=setup.load_settings(role, source="critic"),
        optimizer=optimizer_settings(config, config.optimizer.critic_lr, num_batches),
        loss=loss_settings(config),
        num_epochs=config.algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
    )


class CriticWorker(TrainedWorker):
    """The critic on one device."""

    engine: ValueEngine

    def __init__(self, settings: CriticSettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        model = load_value_model(settings.model)
        self.engine = ValueEngine(model, role=settings.model.role, optimizer=settings.optimizer, ranks=ranks)

    @dispatch(split=("batch",))
    def values(self, *, batch: Batch) -> Tensor:
        """[B, T]: column t is the value of the state before response token t."""
        with self.engine.onloaded():
            return self.engine.values(batch)

    @dispatch()
    def update(self, *, batch: Batch, seed: int) -> dict[str, float]:
        """Train on all epochs and mini-batches of the batch. Returns the mean of their metrics.

        Every rank gets the whole batch and trains on its share of each mini-batch.
        """
        loss = partial(critic_loss, settings=self.settings.loss)
        ranks, role = self.engine.ranks, self.settings.model.role.role
        with self.learning(seed=seed):
            steps = [
                self.engine.update(own_share(mini_batch, ranks), loss=loss)
                | balance_metrics(mini_batch, ranks, role=role)
                for mini_batch in self.mini_batches(
                    batch,
                    prompts_per_mini_batch=self.settings.mini_batch_size or len(batch),
                    num_epochs=self.settings.num_epochs,
                    seed=seed,
                )
            ]
        return mean_metrics(steps, prefix=f"{role}/")

    @dispatch()
    def export(self, *, output: Path) -> Path:
        """Write trunk and head, adapters merged, to a new folder. Raises CheckpointError."""
        output = output.expanduser().absolute()
        model = self.engine.model
        assert isinstance(model, ValueModel)
        with self.writing(output) as writes, self.engine.onloaded():
            weights = model.weights(keeps=writes)
            try:
                if writes:
                    fill_folder(output, partial(model.save_pretrained, weights=weights))
            except OSError as error:
                raise CheckpointError(f"cannot write the critic to `{output}`: {error}") from error
        return output


class CriticModel(Role[CriticSettings, WorkerGroup[CriticWorker]]):
    """The critic: it predicts the return at each response token, and learns from the returns."""

    role = "critic"

    @classmethod
    def from_pretrained(
        cls, path: str, *, pool: ResourcePool | None = None, **options: Unpack[CriticOptions]
    ) -> CriticModel:
        """A critic on the trunk of the model `path`, by default on the first GPU.

        Its value head is that of a saved critic or of a reward model, and otherwise starts at zero. It is planned
        alone, with room for an actor and a reference of its size; `Session` plans all roles together. Raises
        ConfigError, ModelError, HardwareError or DoesNotFitError.
        """
        return cls.planned(SharedPlan(neighbours=("actor", "reference")), path, pool=pool, options=options).start()

    @classmethod
    def planned(
        cls, shared: SharedPlan, path: str, *, pool: ResourcePool | None, options: CriticOptions
    ) -> CriticModel:
        """The critic of a shared plan."""
        values = role_values(cls.__name__, options)
        pool = ResourcePool.given(pool)
        shared.add("critic", path, pool=pool, values=values, shared=tuple(option_keys(CriticOptions).values()))
        return cls(lambda: critic_settings(shared.planned("critic")), pool=pool, shared=shared)

    @property
    def group(self) -> WorkerGroup[CriticWorker]:
        return self.workers

    def compute_values(self, sequences: Sequences) -> Future[Tensor]:
        """[B, T]: the value of the state before each response token."""
        return self.group.run(CriticWorker.values, batch=batch_of(sequences))

    def update(self, batch: Batch, *, seed: int = 0) -> Future[dict[str, float]]:
        """Learn from a batch with `values` and `returns`; returns the metrics.

        `seed` orders the mini-batches. Raises ConfigError for a batch that lacks one of the two.
        """
        check_update(batch, seed)
        batch.require("values", "returns", reader="the update")
        return self.group.run(CriticWorker.update, batch=batch, seed=seed)

    def save_pretrained(self, path: str | Path) -> Path:
        """Write trunk and value head, adapters merged, for `CriticModel.from_pretrained`; returns the folder.

        Raises ModelError if the folder is not empty, CheckpointError if it cannot be written.
        """
        check_output(path)
        return self.group.run(CriticWorker.export, output=Path(path)).result()

    def _start(self, settings: CriticSettings) -> WorkerGroup[CriticWorker]:
        width = settings.model.role.tensor_parallel
        return self.pool.start(lambda place: CriticWorker(settings, place.ranks), tensor_parallel=width)

    def _copy_state(self, old: WorkerGroup[CriticWorker], new: WorkerGroup[CriticWorker]) -> None:
        copy_state(old, new)
