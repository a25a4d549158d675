"""The actor of a run: the public handle over a policy worker and a rollout worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from rl_compat.batch import Batch, Sequences
from rl_compat.config.options import checked_value
from rl_compat.config.types import OnUpdate
from rl_compat.distributed.group import PendingCall, WorkerGroup, interrupt, then
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ray_store import RayStore
from rl_compat.errors import ConfigError, check_type
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.export import check_output
from rl_compat.resharding.handover import handover_metrics
from rl_compat.resharding.mapped import MappedSource
from rl_compat.resharding.publish import StoreSource
from rl_compat.resharding.store import MemoryStore, WeightStore
from rl_compat.rewards.builtin.answers import THOUGHT_TOKENS
from rl_compat.rollout.session import requests_for
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.trajectory import EndedResponse, Prompt, Trajectory
from rl_compat.workers.options import ActorOptions, role_values
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.role import Role, batch_of, check_update
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker
from rl_compat.workers.setup import Setup, loss_settings, optimizer_settings, tokenizer_folder
from rl_compat.workers.shared_plan import SharedPlan
from rl_compat.workers.trained import copy_state

NOT_BEGUN = Response(token_ids=(), logprobs=(), finish_reason="abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    """The settings of an actor's workers."""

    policy: PolicySettings
    rollout: RolloutSettings
    max_new_tokens: int
    "of a response, where a call does not say"
    stop_strings: tuple[str, ...] = ()
    "a response ends with the token that completes one of them"
    is_async: bool = False
    "a rollout on another pool gets new weights by `hand_over`, and not by `generate`"


def actor_settings(setup: Setup, *, num_batches: int | None = None) -> ActorSettings:
    """The learning-rate schedule spans `num_batches` batches; None is a constant rate."""
    config, plan, is_async = setup.config, setup.plan, setup.config.trainer.flow == "async"
    decode = partial(setup.tokenizer.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert plan.rollout is not None, "an actor generates"
    policy = PolicySettings(
        model=setup.load_settings("actor"),
        optimizer=optimizer_settings(config, config.optimizer.actor_lr, num_batches),
        loss=loss_settings(config),
        off_policy=config.off_policy,
        temperature=config.rollout.temperature,
        num_epochs=config.algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        tokenizer_folder=tokenizer_folder(config.model, setup.source.folder),
    )
    rollout = RolloutSettings(
        model=setup.load_settings("rollout", source="actor") if "rollout" in plan.roles else policy.model,
        plan=plan.rollout,
        pad_token_id=setup.tokenizer.pad_token_id,
        num_valid_tokens=setup.tokenizer.num_tokens,
        decode=decode,
        on_update=config.rollout.on_update if is_async else "wait",
    )
    return ActorSettings(
        policy=policy,
        rollout=rollout,
        max_new_tokens=config.data.max_response_length,
        stop_strings=config.rollout.stop_strings,
        is_async=is_async,
    )


@dataclass(frozen=True, slots=True)
class ActorWorkers:
    policy: WorkerGroup[PolicyWorker]
    rollout: WorkerGroup[RolloutWorker]
    way: WeightStore | Literal["mapped"] | None = None
    "of the weights to a rollout on another pool: a store, or memory that it reads itself"


class ActorModel(Role[ActorSettings, ActorWorkers]):
    """The actor: a policy that learns and a rollout that generates with its weights."""

    role = "actor"

    def __init__(
        self,
        settings: Callable[[], ActorSettings],
        *,
        pool: ResourcePool,
        chat: ChatEncoder,
        rollout_pool: ResourcePool | None = None,
        shared: SharedPlan | None = None,
    ) -> None:
        """Use `from_pretrained` or `Session.actor`. `rollout_pool` is by default the pool of the policy."""
        super().__init__(settings, pool=pool, shared=shared)
        self.chat = chat
        self._rollout_pool = rollout_pool
        self._handed_over: int | None = None
        "revision of the weights that a rollout on another pool has"
        self._dtypes: Mapping[str, torch.dtype] = {}
        "of the weights of that rollout"
        self._handing_over = threading.Lock()
        "held during a handover, so that calls from several threads make it once"
        self._counting = threading.Lock()
        self._num_calls = 0
        self._is_learning = False
        self._num_learnings = 0
        self._paused: list[Callable[[], None]] = []
        "calls of `generate` that gave way: each starts the rest of one"
        self.next_group = 0
        "group id of the next prompt; ids are unique over a run"

    @classmethod
    def from_pretrained(
        cls, path: str, *, pool: ResourcePool | None = None, **options: Unpack[ActorOptions]
    ) -> ActorModel:
        """An actor for the model `path` (a name, folder, GGUF file or hub id), by default on the first GPU.

        It is planned alone, with room for a critic and a reference of its size; `Session` plans all roles together.
        Raises ConfigError, ModelError, HardwareError or DoesNotFitError.
        """
        return cls.planned(SharedPlan(neighbours=("critic", "reference")), path, pool=pool, options=options).start()

    @classmethod
    def planned(
        cls,
        shared: SharedPlan,
        path: str,
        *,
        pool: ResourcePool | None,
        options: ActorOptions,
        rollout_pool: ResourcePool | None = None,
        on_update: OnUpdate | None = None,
    ) -> ActorModel:
        """The actor of a shared plan."""
        values = role_values(cls.__name__, options)
        pool = ResourcePool.given(pool)
        generates_on = None if rollout_pool is None else ResourcePool.given(rollout_pool)
        if generates_on is pool:
            generates_on = None
        if on_update is not None:
            checked_value("on_update", on_update, key="rollout.on_update")
            if generates_on is None:
                raise ConfigError(
                    f"`on_update={on_update}` is for a rollout that works while the actor learns; both have one pool",
                    hint="give another pool as `rollout_pool`",
                )
        model = shared.add("actor", path, pool=pool, values=values, shared=())
        if generates_on is not None:
            shared.generate_on(generates_on)
        shared.learns_while_generating = on_update is not None
        assert model.tokenizer is not None
        tokenizer, chat = model.tokenizer, ChatEncoder(model.tokenizer, values.get("model.chat_template"))

        def settings() -> ActorSettings:
            made = actor_settings(Setup(**vars(shared.planned("actor")), tokenizer=tokenizer, chat=chat))
            if on_update is None:
                return made
            return replace(made, is_async=True, rollout=replace(made.rollout, on_update=on_update))

        return cls(settings, pool=pool, chat=chat, rollout_pool=generates_on, shared=shared)

    @property
    def policy(self) -> WorkerGroup[PolicyWorker]:
        return self.workers.policy

    @property
    def rollout(self) -> WorkerGroup[RolloutWorker]:
        return self.workers.rollout

    def encode(
        self,
        prompts: Sequence[str | list[dict[str, str]]],
        *,
        ground_truths: Sequence[Any] | None = None,
        data_source: str = "",
    ) -> list[Prompt]:
        """Texts or chat messages as prompts, template applied; `ground_truths` are what a reward compares with."""
        truths = [None] * len(prompts) if ground_truths is None else ground_truths
        if len(truths) != len(prompts):
            raise ConfigError(f"`ground_truths` has {len(truths)} values and `prompts` {len(prompts)}")
        for prompt in prompts:
            check_type("prompts", prompt, str, list, hint="a prompt is a text or a list of messages")
        encoded = [self.chat.encode(prompt) for prompt in prompts]
        return [
            Prompt(token_ids=tuple(ids), text=text, data_source=data_source, ground_truth=truth, row=row)
            for row, ((text, ids), truth) in enumerate(zip(encoded, truths, strict=True))
        ]

    def generate(
        self,
        prompts: Sequence[Prompt | str | list[dict[str, str]]],
        *,
        max_new_tokens: int | None = None,
        group_size: int = 1,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        sampling: SamplingParams | None = None,
        on_progress: Callable[[int], None] | None = None,
        on_ended: Callable[[Sequence[EndedResponse]], None] | None = None,
    ) -> Future[Sequences]:
        """`group_size` responses to each prompt, those of one prompt next to each other.

        `max_new_tokens` and `temperature` are those of the actor's options unless given; temperature 0 is greedy.
        `sampling` gives all sampling settings at once, and none of them is given separately then. Each prompt is a
        group of its own. `on_ended` receives responses as they end, in the thread of the device; a rollout in another
        process does not call it. Raises ConfigError for a value that the setting of that name does not allow.
        """
        check_type("prompts", prompts, list, tuple, hint="give a list of prompts, also for a single one")
        if not prompts:
            raise ConfigError("`prompts` is empty")
        ready = [p if isinstance(p, Prompt) else self.encode([p])[0] for p in prompts]
        if sampling is not None:
            check_type("sampling", sampling, SamplingParams)
        separate = (max_new_tokens, temperature, top_p, top_k, min_p, seed)
        if sampling is not None and separate != (None, None, 1.0, 0, 0.0, None):
            raise ConfigError(
                "`sampling` is given, and sampling settings next to it", hint="set them in `SamplingParams`"
            )
        params = sampling or SamplingParams(
            max_new_tokens=self.settings.max_new_tokens if max_new_tokens is None else max_new_tokens,
            temperature=self.settings.policy.temperature if temperature is None else temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop_strings=self.settings.stop_strings,
            seed=seed,
        )
        _check(params, group_size)
        params = replace(params, stop_token_ids=params.stop_token_ids or self.chat.stop_token_ids)
        if not self.settings.is_async or self._handed_over is None:
            self.hand_over()
        with self._counting:
            first, self.next_group = self.next_group, self.next_group + len(ready)
            self._num_calls += 1
            call = f"{self.rollout.key} {self._num_calls}"
        requests = requests_for([prompt.token_ids for prompt in ready], params, group_size=group_size)
        places = [(prompt, group) for group, prompt in enumerate(ready, start=first) for _ in range(group_size)]
        record = _Responses(places, self.chat)
        if self.settings.rollout.on_update != "wait":
            self.rollout.run(RolloutWorker.announce, call=call, requests=requests).result()

        def generate() -> Future[dict[int, Response]]:
            return self.rollout.run(
                RolloutWorker.generate,
                call=call,
                requests=requests,
                rows=[prompt.row for prompt, _ in places],
                on_progress=on_progress,
                on_ended=None if on_ended is None else lambda found: on_ended(record.ended(found)),
            )

        return then(self._in_parts(generate, len(places)) if self.gives_way else generate(), record.sequences)

    @property
    def gives_way(self) -> bool:
        """Whether the rollout uses the devices of the policy, and stops between two tokens for `learning`."""
        on_same = self._rollout_pool is None or self._rollout_pool is self.pool
        return on_same and self.settings.rollout.on_update != "wait"

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Inside the block, a rollout that gives way generates nothing. Afterwards its calls go on."""
        if not self.gives_way:
            yield
            return
        with self._counting:
            self._is_learning, self._num_learnings = True, self._num_learnings + 1
        self.rollout.run(RolloutWorker.give_way, gives_way=True).result()
        try:
            yield
        finally:
            self.rollout.run(RolloutWorker.give_way, gives_way=False).result()
            with self._counting:
                self._is_learning = False
                paused, self._paused = self._paused, []
            for start in paused:
                start()

    def _in_parts(
        self, generate: Callable[[], Future[dict[int, Response]]], num_responses: int
    ) -> Future[dict[int, Response]]:
        """The responses of a call that is made again each time that it has given way."""
        found: dict[int, Response] = {}
        whole: PendingCall[dict[int, Response]] = PendingCall(lambda: interrupt(running))
        running: Future[dict[int, Response]] | None = None

        def start() -> None:
            nonlocal running
            number = self._num_learnings - self._is_learning
            try:
                running = generate()
                running.add_done_callback(partial(take, number))
            except Exception as error:
                whole.set_exception(error)

        def take(number: int, part: Future[dict[int, Response]]) -> None:
            try:
                found.update(part.result())
            except BaseException as error:
                whole.set_exception(error)
                return
            with self._counting:
                gave_way = len(found) < num_responses and number < self._num_learnings
                if gave_way and self._is_learning:
                    self._paused.append(start)
                    return
            if gave_way:
                start()
            else:
                whole.set_result(found)

        start()
        return whole

    def return_groups(self, sequences: Sequences) -> None:
        """Take back the groups of a call of `generate`, unless later calls have taken some since."""
        first, last = (int(group) for group in sequences.batch.groups.aminmax())
        with self._counting:
            if self.next_group == last + 1:
                self.next_group = first

    def hand_over(self) -> None:
        """Give a rollout on another pool the weights of the policy, if they have changed.

        `generate` does so before it starts, unless the rollout works while the policy learns: with `on_update`.
        """
        way = self.workers.way
        if way is None:
            return
        with self._handing_over:
            revision = self.policy.run(PolicyWorker.revision).result()
            if revision == self._handed_over:
                return
            if way == "mapped":
                mapped = self.policy.run(PolicyWorker.map_weights).result()
                self.rollout.run(RolloutWorker.read, mapped=mapped).result()
            else:
                self._dtypes = self._dtypes or self.rollout.run(RolloutWorker.weight_dtypes).result()
                published = self.policy.run(PolicyWorker.publish, store=way, dtypes=self._dtypes).result()
                self.rollout.run(RolloutWorker.offer, published=published).result()
            self._handed_over = revision

    def compute_logprobs(self, sequences: Sequences) -> Future[Tensor]:
        """Log-probability of each response token under the current weights, [B, T]."""
        return self.policy.run(PolicyWorker.logprobs, batch=batch_of(sequences))

    def compute_token_outputs(self, sequences: Sequences) -> Future[dict[str, Tensor]]:
        """The same as `logprobs`, with `sum_pi_squared`: the sum of the squared probabilities of all tokens, [B, T]."""
        return self.policy.run(PolicyWorker.token_outputs, batch=batch_of(sequences))

    def update(self, batch: Batch, *, seed: int = 0) -> Future[dict[str, float]]:
        """Learn from a batch with `advantages` and, for several steps, `old_logprobs`; returns the metrics.

        `seed` orders the mini-batches. Raises ConfigError for a batch that lacks one of the two.
        """
        check_update(batch, seed)
        batch.require("advantages", reader="the update")
        if self.settings.policy.loss.algorithm.kl_loss != "none":
            batch.require("ref_logprobs", reader="`kl_loss`")
        return self.policy.run(PolicyWorker.update, batch=batch, seed=seed)

    def take_handover_metrics(self) -> dict[str, float]:
        """Bytes, seconds and memory of the last handover of weights, if there was one since the last call.

        With `rollout.on_update=abort` also the number of tokens that handovers dropped.
        """
        metrics = handover_metrics(self.rollout.run(RolloutWorker.take_handovers).result())
        if self.settings.rollout.on_update == "abort":
            metrics["async/tokens_lost"] = float(self.rollout.run(RolloutWorker.take_lost_tokens).result())
        return metrics

    def save_pretrained(self, path: str | Path) -> Path:
        """Write the model, adapters merged, with its tokenizer as a Hugging Face folder; returns the folder.

        Raises ModelError if the folder is not empty, CheckpointError if it cannot be written.
        """
        check_output(path)
        return self.policy.run(PolicyWorker.export, output=Path(path)).result()

    def _start(self, settings: ActorSettings) -> ActorWorkers:
        learning, generating = settings.policy, settings.rollout
        width, together = learning.model.role.tensor_parallel, generating.plan.tensor_parallel
        policy = self.pool.start(lambda place: PolicyWorker(learning, place.ranks), tensor_parallel=width)
        if self._rollout_pool is None or self._rollout_pool is self.pool:
            key = policy.key
            rollout = self.pool.start(
                lambda place: RolloutWorker(generating, place.workers[key].weight_source(), place.ranks),
                tensor_parallel=together,
            )
            return ActorWorkers(policy, rollout)
        self._handed_over, self._dtypes = None, {}
        if self.pool.address is None and self._rollout_pool.address is None and can_map(settings):
            rollout = self._rollout_pool.start(
                lambda place: RolloutWorker(generating, MappedSource(place.ranks.process), place.ranks),
                tensor_parallel=together,
            )
            return ActorWorkers(policy, rollout, "mapped")
        store: WeightStore = MemoryStore() if self.pool.is_local and self._rollout_pool.is_local else RayStore()
        rollout = self._rollout_pool.start(
            lambda place: RolloutWorker(generating, StoreSource(store), place.ranks), tensor_parallel=together
        )
        return ActorWorkers(policy, rollout, store)

    def _copy_state(self, old: ActorWorkers, new: ActorWorkers) -> None:
        copy_state(old.policy, new.policy)


class _Responses:
    """The responses of a call with their prompts and groups. Each is decoded once."""

    def __init__(self, places: Sequence[tuple[Prompt, int]], chat: ChatEncoder) -> None:
        self._places = places
        self._chat = chat
        self._texts: dict[int, str] = {}

    def ended(self, responses: Mapping[int, Response]) -> list[EndedResponse]:
        ended = {place: self._trajectory(place, response) for place, response in responses.items()}
        return [
            EndedResponse(place=place, trajectory=trajectory, text=partial(self._text, place, trajectory))
            for place, trajectory in ended.items()
        ]

    def sequences(self, responses: Mapping[int, Response]) -> Sequences:
        """All responses; one that no engine has begun counts as aborted."""
        places = range(len(self._places))
        trajectories = [self._trajectory(place, responses.get(place, NOT_BEGUN)) for place in places]
        return Sequences.from_trajectories(trajectories, list(map(self._text, places, trajectories)))

    def _trajectory(self, place: int, response: Response) -> Trajectory:
        prompt, group = self._places[place]
        return Trajectory(
            prompt=prompt,
            group=group,
            response_ids=response.token_ids,
            rollout_logprobs=response.logprobs,
            finish_reason=response.finish_reason,
            policy_versions=response.policy_versions,
        )

    def _text(self, place: int, trajectory: Trajectory) -> str:
        if place not in self._texts:
            self._texts[place] = self._chat.decode(trajectory.response_ids, keeps=THOUGHT_TOKENS)
        return self._texts[place]


def can_map(settings: ActorSettings) -> bool:
    """Whether a rollout on another pool of this machine can read weights where the policy has them.

    Both are on GPUs, the policy does not leave its GPU or learn meanwhile, and the rollout keeps what it has read.
    """
    roles = settings.policy.model.role, settings.rollout.model.role
    on_gpus = all(role.device.startswith("cuda") for role in roles)
    moves = settings.is_async or roles[0].offload_idle or settings.rollout.plan.sleep_between
    return on_gpus and not moves


def _check(params: SamplingParams, group_size: int) -> None:
    """Raise ConfigError for a value that its setting does not allow. Temperature 0 is greedy."""
    if params.seed is not None:
        check_type("seed", params.seed, int)
    checked_value("group_size", group_size, key="algorithm.group_size")
    checked_value("max_new_tokens", params.max_new_tokens, key="data.max_response_length")
    checked_value("temperature", params.temperature, key="trainer.validation_temperature")
    for name in ("top_p", "top_k", "min_p", "stop_strings"):
        checked_value(name, getattr(params, name), key=f"rollout.{name}")
