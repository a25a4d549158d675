"""The reference: the policy that the actor stays close to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.distributed.dispatch import dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.models.load import load_causal_lm
from rl_compat.planning.types import RolePlan
from rl_compat.training.engine import PolicyEngine
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.role_options import RoleOptions
from rl_compat.workers.sequences import Sequences
from rl_compat.workers.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSettings:
    """The settings of a reference worker."""

    model_folder: Path
    role: RolePlan
    temperature: float
    trust_remote_code: bool


def reference_settings(setup: Setup) -> ReferenceSettings:
    return ReferenceSettings(
        model_folder=setup.source.folder,
        role=setup.plan.roles["reference"],
        temperature=setup.config.rollout.temperature,
        trust_remote_code=setup.config.model.trust_remote_code,
    )


class ReferenceWorker:
    """A frozen model on one device."""

    def __init__(self, settings: ReferenceSettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        model = load_causal_lm(settings.model_folder, role=settings.role, trust_remote_code=settings.trust_remote_code)
        self.engine = PolicyEngine(model, role=settings.role, optimizer=None, ranks=ranks)

    @dispatch(split=("batch",))
    def logprobs(self, *, batch: Batch) -> Tensor:
        """Log-probability of each response token under the frozen weights, [B, T]."""
        with self.engine.onloaded():
            return self.engine.logprobs(batch, temperature=self.settings.temperature).logprobs


class ReferenceModel:
    """The reference of a run: a separate frozen model, or the actor with its adapters disabled."""

    def __init__(self, logprobs: Callable[[Batch], Future[Tensor]]) -> None:
        self._logprobs = logprobs

    @classmethod
    def start(cls, settings: ReferenceSettings, *, pool: ResourcePool) -> ReferenceModel:
        """A separate frozen model."""
        group = pool.start(partial(ReferenceWorker, settings))
        return cls(lambda batch: group.run(ReferenceWorker.logprobs, batch=batch))

    @classmethod
    def of_adapter(cls, actor: ActorModel) -> ReferenceModel:
        """The base model of an actor that trains adapters; it needs no further weights."""
        assert actor.settings.policy.lora is not None, "only an actor with adapters holds its own reference"
        return cls(lambda batch: actor.policy.run(PolicyWorker.reference_logprobs, batch=batch))

    @classmethod
    def from_pretrained(cls, path: str, *, pool: ResourcePool, **options: Any) -> ReferenceModel:
        """A frozen model `path`, planned for the pool's device.

        Options: `max_prompt_length`, `max_new_tokens`, `temperature`. Raises ModelError, HardwareError or
        DoesNotFitError.
        """
        return cls.start(reference_settings(RoleOptions(path=path, **options).on(pool)), pool=pool)

    def compute_logprobs(self, sequences: Sequences) -> Future[Tensor]:
        """Log-probability of each response token under the reference, [B, T]."""
        return self._logprobs(sequences.batch)
