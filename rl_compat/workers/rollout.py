"""The rollout worker: generates responses with the weights of a policy."""

from __future__ import annotations

import threading
import time
from collections import ChainMap, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from rl_compat.config.types import OnUpdate
from rl_compat.distributed.group import dispatch
from rl_compat.distributed.ranks import Counter, Ranks, Solo, inside
from rl_compat.errors import NotFiniteError
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.mapped import MappedSource, MappedWeights
from rl_compat.resharding.publish import PublishedWeights, StoreSource
from rl_compat.resharding.source import SharedStorage, WeightSource
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.session import OnEnded, RequestQueue, dealt
from rl_compat.rollout.types import Decode, Request, Response

WAIT_SECONDS = 0.001
"until the processes of an engine ask again what each of them has"


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
    on_update: OnUpdate = "wait"
    "what becomes of unfinished responses when the policy offers new weights"


class RolloutWorker:
    """Generates on one device, with the policy's storage if it is in the same process, else with its own.

    Several devices may be one engine. Their workers take the same requests and weights at the same step, and the
    first one returns the responses.
    """

    def __init__(self, settings: RolloutSettings, source: WeightSource, ranks: Ranks = Solo()) -> None:
        """`ranks` are the engines that share the requests."""
        self._settings = settings
        self._ranks = ranks
        self._together = inside(ranks)
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
            device=settings.model.role.device,
            together=self._together,
        )
        self._revision = -1
        self._handovers: list[Handover] = []
        self._num_lost_tokens = 0
        self._loading = threading.Lock()
        "held while weights are read, so that none that are newer are published over them"
        self._announced: deque[tuple[str, Sequence[Request]]] = deque()
        self._open: dict[str, RequestQueue] = {}
        "by call: requests that have been announced, and those of calls that gave way"
        self._gives_way = False
        if isinstance(source, SharedStorage):
            self._revision, self.session.policy_version = source.revision, source.version

    @property
    def version(self) -> int:
        """The policy version of the weights."""
        return self.session.policy_version

    @dispatch(urgent=True)
    def announce(self, *, call: str, requests: Sequence[Request]) -> None:
        """Let a call in progress begin with the requests of a later `generate`, as it has room."""
        self._announced.append((call, requests))
        self.session.nudge()

    @dispatch(merge=lambda results, shares: dict(ChainMap(*results)), takes_rows=True)
    def generate(
        self,
        *,
        call: str,
        requests: Sequence[Request],
        rows: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
        on_ended: OnEnded | None = None,
    ) -> dict[int, Response]:
        """Generate with the newest weights of the policy; responses by the place of their request.

        Every rank gets all requests and takes more of them as it has room. `call` is a name of the call, `rows` are
        those of the prompts in the data. Weights that are offered meanwhile are taken as `on_update` says. `on_ended`
        receives each response as it ends. After `give_way` the call returns before its end, and goes on when it is
        made again.
        """
        self._catch_up()
        queue = self._open.pop(call, None) or self._queue(call, requests)
        responses: dict[int, Response] = {}
        if not self._gives_way:
            with self._source.resident() if self._shares else nullcontext():
                try:
                    report = on_progress if self._is_first else None
                    responses = self.session.serve(queue, on_progress=report, on_ended=on_ended, nudged=self._goes_on)
                except NotFiniteError as error:
                    if error.number is None:
                        raise
                    raise NotFiniteError(f"{error.message} to row {rows[error.number]}", hint=error.hint) from error
        if not queue.is_done:
            self._open[call] = queue
        if self._settings.plan.sleep_between and (self._gives_way or not self._open):
            self._sleep()
        return responses if self._is_first else {}

    @property
    def _is_first(self) -> bool:
        """Whether this process speaks for its engine."""
        return self._together.process == 0

    @dispatch(urgent=True)
    def give_way(self, *, gives_way: bool) -> None:
        """Let `generate` return between two tokens, so that the policy can use the device, until this is taken back."""
        self._gives_way = gives_way
        self.session.nudge()

    def _goes_on(self) -> bool:
        self._catch_up()
        return not self._gives_way

    def _queue(self, call: str, requests: Sequence[Request]) -> RequestQueue:
        size = self._ranks.size
        counter, share = self._counter(call), -(-len(requests) // size)
        if size == 1:
            return RequestQueue(requests, counter, share)
        most = self._settings.plan.max_num_seqs
        order = dealt(requests, share) if share <= most else ()
        return RequestQueue(requests, counter, min(share, most), most, order)

    def _counter(self, call: str) -> Counter:
        """The counter of a call, from which the first process takes for its engine."""
        counter = self._ranks.counter(call)
        if self._together.num_processes == 1:
            return counter
        return lambda count: self._together.gather(counter(count) if self._is_first else 0)[0]

    def _catch_up(self) -> None:
        """Take the newest weights and the requests that were announced, once all processes of the engine have them."""
        while True:
            with self._loading:
                held = self._together.gather((self._source.revision, len(self._announced)))
                if len(set(held)) == 1:
                    self._load_newest()
                    break
            time.sleep(WAIT_SECONDS)
        for call, requests in [self._announced.popleft() for _ in range(held[0][1])]:
            self._open[call] = self._queue(call, requests)
            self.session.open(self._open[call])

    def _load_newest(self) -> None:
        """Take the weights of the policy if they have changed, or if the rollout's own storage was freed."""
        on_update = self._settings.on_update
        is_newest = self._revision == self._source.revision and self.session.has_weights
        if is_newest or (on_update == "wait" and self.session.num_unfinished):
            return
        if on_update == "abort":
            self._num_lost_tokens += self.session.restart()
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

    @dispatch()
    def weight_dtypes(self) -> dict[str, torch.dtype]:
        """The dtypes in which this rollout stores the weights of the policy."""
        return {name: parameter.dtype for name, parameter in self._model.named_parameters()}

    @dispatch(urgent=True)
    def offer(self, *, published: PublishedWeights) -> None:
        """Offer weights that a policy on another pool has published; see `generate`."""
        assert isinstance(self._source, StoreSource), "the policy is in this process"
        with self._loading:
            self._source.offer(published)
        self.session.nudge()

    @dispatch()
    def read(self, *, mapped: MappedWeights) -> None:
        """Load weights from where a policy on another pool has them."""
        assert isinstance(self._source, MappedSource), "the policy is in this process, or has a store"
        with self._loading:
            self._source.offer(mapped)
            self._load_newest()

    @dispatch(merge=lambda results, shares: [one for own in results for one in own], urgent=True)
    def take_handovers(self) -> list[Handover]:
        """The record of the last handover on each rank, if weights were transferred since the last call."""
        taken, self._handovers = self._handovers, []
        return taken

    @dispatch(merge=lambda results, shares: sum(results), urgent=True)
    def take_lost_tokens(self) -> int:
        """The number of tokens since the last call that `on_update` dropped."""
        taken, self._num_lost_tokens = self._num_lost_tokens, 0
        return taken if self._is_first else 0

    @dispatch(urgent=True)
    def abort(self) -> None:
        """End the call in progress, which then returns its unfinished responses."""
        self.session.abort()


def own_storage(settings: RolloutSettings) -> LoadSettings:
    """How a rollout that owns its weights loads them: frozen, whole, in its compute dtype unless quantized.

    vLLM has the copy on the device, so that its engine needs another on the host only.
    """
    trained = settings.model.role
    if settings.plan.engine == "vllm" and trained.quantization == "none":
        trained = replace(trained, device="cpu", attention="sdpa")
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
