"""The reference: the policy that the actor stays close to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from rl_compat.batch import Batch, Sequences
from rl_compat.distributed.group import dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.training.engine import PolicyEngine
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.options import ReferenceOptions, option_keys, role_values
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.role import Role, batch_of
from rl_compat.workers.setup import Planned
from rl_compat.workers.shared_plan import SharedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSettings:
    """The settings of a reference worker."""

    model: LoadSettings
    temperature: float


def reference_settings(setup: Planned) -> ReferenceSettings:
    model = setup.load_settings("reference", learns=False)
    return ReferenceSettings(model=model, temperature=setup.config.rollout.temperature)


class ReferenceWorker:
    """A frozen model on one device."""

    def __init__(self, settings: ReferenceSettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        model = load_causal_lm(settings.model)
        self.engine = PolicyEngine(model, role=settings.model.role, optimizer=None, ranks=ranks)

    @dispatch(split=("batch",))
    def logprobs(self, *, batch: Batch) -> Tensor:
        """Log-probability of each response token under the frozen weights, [B, T]."""
        with self.engine.onloaded():
            return self.engine.logprobs(batch, temperature=self.settings.temperature).logprobs


Logprobs = Callable[[Batch], Future[Tensor]]


class ReferenceModel(Role[ReferenceSettings | ActorModel, Logprobs]):
    """The reference: a frozen model, or the actor with its adapters disabled."""

    role = "reference"

    @classmethod
    def of_adapter(cls, actor: ActorModel) -> ReferenceModel:
        """The base model of an actor that trains adapters; it needs no further weights."""
        assert actor.settings.policy.model.lora is not None, "only an actor with adapters holds its own reference"
        return cls(lambda: actor, pool=actor.pool)

    @classmethod
    def from_pretrained(
        cls, path: str, *, pool: ResourcePool | None = None, **options: Unpack[ReferenceOptions]
    ) -> ReferenceModel:
        """A frozen model `path`, by default on the first GPU.

        It is planned alone, with room for an actor and a critic of its size; `Session` plans all roles together. Raises
        ConfigError, ModelError, HardwareError or DoesNotFitError.
        """
        return cls.planned(SharedPlan(neighbours=("actor", "critic")), path, pool=pool, options=options).start()

    @classmethod
    def planned(
        cls,
        shared: SharedPlan,
        path: str,
        *,
        pool: ResourcePool | None,
        options: ReferenceOptions,
        actor: Callable[[], ActorModel] | None = None,
    ) -> ReferenceModel:
        """The reference of a shared plan; `actor` gives the one whose base it may be."""
        values = role_values(cls.__name__, options)
        pool = ResourcePool.given(pool)
        shared.add("reference", path, pool=pool, values=values, shared=tuple(option_keys(ReferenceOptions).values()))

        def settings() -> ReferenceSettings | ActorModel:
            if actor is not None and shared.reference_is_base():
                return actor()
            return reference_settings(shared.planned("reference"))

        return cls(settings, pool=pool, shared=shared)

    def compute_logprobs(self, sequences: Sequences) -> Future[Tensor]:
        """Log-probability of each response token under the reference, [B, T]."""
        return self.workers(batch_of(sequences))

    def _start(self, settings: ReferenceSettings | ActorModel) -> Logprobs:
        if isinstance(settings, ActorModel):
            return lambda batch: settings.policy.run(PolicyWorker.reference_logprobs, batch=batch)
        width = settings.model.role.tensor_parallel
        group = self.pool.start(lambda place: ReferenceWorker(settings, place.ranks), tensor_parallel=width)
        return lambda batch: group.run(ReferenceWorker.logprobs, batch=batch)
