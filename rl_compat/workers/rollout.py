"""The rollout worker: generates responses with the weights of a policy."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from rl_compat.distributed.group import dispatch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import NotFiniteError
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.publish import PublishedWeights, StoreSource
from rl_compat.resharding.source import SharedStorage, WeightSource
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.types import Decode, Request, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The settings of a rollout worker."""

    model: LoadSettings
    "of the policy whose weights the rollout uses"
    plan: RolloutPlan
    pad_token_id: int
    num_valid_tokens: int
    "number of tokenizer entries; larger token ids are never drawn"
    decode: Decode | None = None
    "decodes token ids to the text in which stop strings are searched"


class RolloutWorker:
    """Generates on one device, with the policy's storage if it is in the same process, else with its own."""

    def __init__(self, settings: RolloutSettings, source: WeightSource, ranks: Ranks = Solo()) -> None:
        """`ranks` are the engines that share the requests."""
        self._settings = settings
        self._ranks = ranks
        self._source = source
        self._shares = isinstance(source, SharedStorage)
        model = source.model if isinstance(source, SharedStorage) else load_causal_lm(own_storage(settings))
        self._model = model
        self.session = build_rollout_engine(
            model,
            plan=settings.plan,
            pad_token_id=settings.pad_token_id,
            num_valid_tokens=settings.num_valid_tokens,
            decode=settings.decode,
        )
        self._revision = -1
        self._handovers: list[Handover] = []
        if isinstance(source, SharedStorage):
            self._revision, self.session.policy_version = source.revision, source.version

    @property
    def version(self) -> int:
        """The policy version of the weights."""
        return self.session.policy_version

    @dispatch(merge=lambda results, shares: dict(ChainMap(*results)))
    def generate(
        self,
        *,
        requests: Sequence[Request],
        rows: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
    ) -> dict[int, Response]:
        """Generate with the newest weights of the policy; responses by the place of their request.

        Every rank gets all requests and takes more of them as it has room. `rows` are those of the prompts in the data.
        """
        self._load_newest()
        size = self._ranks.size
        at_once = -(-len(requests) // size)
        if size > 1:
            at_once = min(at_once, self._settings.plan.max_num_seqs)
        with self._source.resident() if self._shares else nullcontext():
            try:
                responses = self.session.serve(
                    requests, self._ranks.counter(), at_once=at_once, on_progress=on_progress
                )
            except NotFiniteError as error:
                if error.number is None:
                    raise
                raise NotFiniteError(f"{error.message} to row {rows[error.number]}", hint=error.hint) from error
        if self._settings.plan.sleep_between:
            self._sleep()
        return responses

    def _load_newest(self) -> None:
        """Take the weights of the policy if they have changed, or if the rollout's own storage was freed."""
        if self._revision != self._source.revision:
            with self._source.resident():
                handover = self.session.load(self._source)
            self._revision = self._source.revision
            if not self._shares:
                self._handovers = [handover]

    def _sleep(self) -> None:
        if self._shares:
            self.session.sleep()
        else:
            self.session.release_weights()
            self._revision = -1

    @dispatch()
    def weight_dtypes(self) -> dict[str, torch.dtype]:
        """The dtypes in which this rollout stores the weights of the policy."""
        return {name: parameter.dtype for name, parameter in self._model.named_parameters()}

    @dispatch()
    def offer(self, *, published: PublishedWeights) -> None:
        """Announce weights that a policy on another pool has published; the next `generate` loads them."""
        assert isinstance(self._source, StoreSource), "the policy is in this process"
        self._source.offer(published)

    @dispatch(merge=lambda results, shares: [one for own in results for one in own])
    def take_handovers(self) -> list[Handover]:
        """The record of the last handover on each rank, if weights were transferred since the last call."""
        taken, self._handovers = self._handovers, []
        return taken

    @dispatch(urgent=True)
    def abort(self) -> None:
        """End the call in progress, which then returns its unfinished responses."""
        self.session.abort()


def own_storage(settings: RolloutSettings) -> LoadSettings:
    """How a rollout that owns its weights loads them: frozen, whole, in its compute dtype unless quantized."""
    trained = settings.model.role
    role = replace(
        trained,
        role="reference",
        storage_dtype=settings.plan.compute_dtype if trained.quantization == "none" else trained.storage_dtype,
        compute_dtype=settings.plan.compute_dtype,
        gradient_checkpointing=False,
        offload_idle=False,
        num_shards=1,
    )
    return replace(settings.model, role=role)
