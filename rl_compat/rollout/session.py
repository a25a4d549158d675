"""The interface of rollout engines: submit requests, step, collect responses, and load weights in between."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import nn

from rl_compat.distributed.ranks import Counter, Ranks, Solo, own_counter
from rl_compat.errors import NotFiniteError
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.source import WeightReceiver, WeightSource
from rl_compat.rollout.inference import check_prompts, not_finite, num_embeddings
from rl_compat.rollout.sampling import call_seed, response_keys
from rl_compat.rollout.types import Decode, Progress, Request, Response, SamplingParams, StopStrings, stop_strings
from rl_compat.trajectory import FinishReason

OnEnded = Callable[[dict[int, Response]], None]
"receives ended responses by the place of their request"


@dataclass(slots=True, kw_only=True, eq=False)
class PartialResponse:
    """A response from its request to its end."""

    number: int
    "number of the request in its session"
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    key: int
    "key of its random numbers, from the prompt and the number of the copy"
    stop: frozenset[int] = frozenset()
    "the stop tokens of `params`"
    strings: StopStrings | None = None
    "search for the stop strings of `params`"
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and tokens so far."""
        return (*self.prompt_ids, *self.token_ids) if self.token_ids else self.prompt_ids

    @property
    def last_token(self) -> int:
        """The last token of the context."""
        return self.token_ids[-1] if self.token_ids else self.prompt_ids[-1]

    @property
    def length(self) -> int:
        """Tokens of the context."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def room(self) -> int:
        """Remaining tokens until the limit."""
        return self.params.max_new_tokens - len(self.token_ids)

    def extend(
        self, tokens: Sequence[int], logprobs: Sequence[float], raw_logprobs: Sequence[float], *, version: int
    ) -> None:
        """Append drawn tokens up to the one that ends the response, and set the finish reason. The rest is dropped."""
        before = len(self.token_ids)
        count, reason = self._end(tokens)
        self.token_ids += tokens[:count]
        if self.strings is not None:
            end = self.strings.end(self.token_ids, num_checked=before)
            if end is not None:
                count, reason = end - before, "stop"
                del self.token_ids[end:]
        self.logprobs += logprobs[:count]
        self.raw_logprobs += raw_logprobs[:count]
        self.versions += [version] * count
        self.finish_reason = reason if math.isfinite(sum(logprobs[:count])) else "abort"

    def _end(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """The number of new tokens that belong to the response, and the reason why it ends there."""
        room, stop = self.room, self.stop
        for count, token in enumerate(tokens[:room], start=1):
            if token in stop:
                return count, "stop"
        return (room, "length") if len(tokens) >= room else (len(tokens), None)

    def response(self) -> Response:
        """The response so far; one that has not ended counts as aborted."""
        return Response(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason or "abort",
            raw_logprobs=tuple(self.raw_logprobs),
            policy_versions=tuple(self.versions),
        )


class RolloutSession(ABC):
    """A rollout engine: `submit` requests and call `step` until they are finished, or `generate` to do both.

    Requests may be submitted while others are in progress; those that differ in temperature or filters wait until
    earlier ones have finished. Draws depend only on the seed, the prompt ids and the number of the copy, and every
    token carries the version of the policy that drew it. `abort` and `nudge` may be called from any thread, everything
    else only from the thread that calls `step`.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: RolloutPlan,
        *,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
        together: Ranks = Solo(),
    ) -> None:
        """`model` holds the weights. Ids from `num_valid_tokens` on are never drawn. Stop strings need `decode`.

        `together` are the processes that compute each layer together. All of them serve the same queues.
        """
        self.policy_version = 0
        self._source = model
        self._receiver = WeightReceiver(model)
        self._plan = plan
        self._num_valid_tokens = num_valid_tokens
        self._decode = decode
        self._together = together
        self._waiting: deque[PartialResponse] = deque()
        self._unfinished: dict[int, PartialResponse] = {}
        self._ended: list[PartialResponse] = []
        self._next_number = 0
        self._queues: list[RequestQueue] = []
        "of which this engine may take more, the first one first"
        self._aborted = False
        self._nudged = False

    @property
    def num_unfinished(self) -> int:
        """The number of requests without a returned response."""
        return len(self._unfinished)

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests; returns a number for each, the key of its response in the result of `step`.

        Raises DataError for a prompt that is empty, holds an unknown id or is too long, ConfigError for stop strings
        without a tokenizer.
        """
        self._check(requests)
        return self._queue(requests)

    def step(self, *, max_tokens: int | None = None) -> dict[int, Response]:
        """Advance the requests in progress and return the finished responses by request number.

        Each request in progress gets at least one token and at most `max_tokens`. By default the native engine
        advances by one token on a CPU and by several on a GPU, vLLM by one of its steps, and `transformers` by one
        batch, which it finishes. Raises NotFiniteError for a model whose numbers are NaN or infinite, ModelError if the
        last `load` failed.
        """
        self._receiver.check()
        if self._unfinished and not self._ended and not self._aborted:
            with self._generating():
                self._ended += self._advance(max_tokens, lambda num_ended: None)
        if self._aborted:
            self._end_all()
        return self._take(list(self._ended))

    def pause(self) -> dict[int, Response]:
        """Free the slots of all requests in progress and return their responses so far, by request number.

        They keep their tokens, log-probabilities and policy versions, and the next `step` continues them.
        """
        self._evict()
        return {number: partial.response() for number, partial in self._unfinished.items() if partial.token_ids}

    def load(self, source: WeightSource) -> Handover:
        """Generate with a newer policy from the next step on; returns what was transferred.

        Requests in progress are paused first, so that no key or value of the older weights is used. Nothing is copied
        if the source shares the storage of this engine's model; a copy in a lower dtype is refreshed in place. Raises
        ModelError if the source has another model. After an error the version stays, and nothing is generated until a
        later call succeeds.
        """
        self.pause()
        handover = self._receive(source)
        self._receiver.confirm()
        self.policy_version = source.version
        return handover

    def _receive(self, source: WeightSource) -> Handover:
        handover = self._receiver.receive(source)
        self._refresh()
        return handover

    @property
    def has_weights(self) -> bool:
        """Whether the engine can generate without another `load`."""
        return self._receiver.is_whole

    def release_weights(self) -> None:
        """Sleep, and free the engine's own storage of weights until the next `load`. Not for a shared storage."""
        self.sleep()
        self._receiver.release()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Progress | None = None,
    ) -> list[list[Response]]:
        """Submit `group_size` requests per prompt and step until they finish; responses in the order of the prompts.

        `on_progress` receives the number of finished responses and ends the call early by returning False. Raises
        what `submit` and `step` raise; the requests are then dropped.
        """
        assert group_size > 0
        requests = requests_for(prompts, params, group_size=group_size)
        responses = self.serve(RequestQueue(requests, own_counter(), len(requests)), on_progress=on_progress)
        places = range(len(requests))
        return [[responses[place] for place in places[i : i + group_size]] for i in places[::group_size]]

    def open(self, queue: RequestQueue) -> None:
        """Let a running `serve` of another queue also take from this one, as it has room; `serve` it later.

        Raises DataError and ConfigError as `submit` does.
        """
        self._check(queue.requests)
        self._queues.append(queue)

    def serve(
        self,
        queue: RequestQueue,
        *,
        on_progress: Progress | None = None,
        on_ended: OnEnded | None = None,
        nudged: Callable[[], bool] | None = None,
    ) -> dict[int, Response]:
        """Generate those requests of a queue that this engine takes; responses by their place in the queue.

        `on_ended` receives responses as they end. `nudged` is called after a `nudge`, between two steps; it may open
        queues and load weights. If it returns False, `serve` returns what has ended, and goes on when it is called
        again.
        """
        self._receiver.check()
        self._aborted = False
        if queue not in self._queues:
            self.open(queue)
        try:
            while not self._drain(queue, on_progress, on_ended):
                self._nudged = False
                if nudged is not None and not nudged():
                    break
            ended = self._take([partial for partial in self._ended if partial.number in queue.places])
        except BaseException as error:
            self._forget(queue.places)
            self._queues.remove(queue)
            if isinstance(error, NotFiniteError) and error.number is not None:
                error.number = queue.places.get(error.number)
            raise
        if queue.is_done:
            self._queues.remove(queue)
        return {queue.places[number]: response for number, response in ended.items()}

    def nudge(self) -> None:
        """Let a running `serve` call its function `nudged`, from any thread."""
        self._nudged = True

    def restart(self) -> int:
        """Begin all unfinished responses again at the next step; returns the number of tokens that this loses."""
        self._evict()
        ended = {partial.number for partial in self._ended}
        unfinished = [partial for number, partial in self._unfinished.items() if number not in ended]
        num_lost = sum(len(partial.token_ids) for partial in unfinished)
        for partial in unfinished:
            for drawn in (partial.token_ids, partial.logprobs, partial.raw_logprobs, partial.versions):
                drawn.clear()
        return num_lost

    def abort(self) -> None:
        """End all requests, from any thread; the step in progress returns their responses so far."""
        self._aborted = True

    @abstractmethod
    def sleep(self) -> None:
        """Pause, and release all device memory that does not belong to the trainer, until the next step."""

    @abstractmethod
    def _generating(self) -> AbstractContextManager[None]:
        """Inside the context, the engine is awake and its model is ready for `_advance`."""

    @abstractmethod
    def _advance(self, max_tokens: int | None, report: Callable[[int], None]) -> list[PartialResponse]:
        """Draw tokens, also for requests in `_waiting`; returns the responses that ended.

        `report` may be called with their number during the call.
        """

    @abstractmethod
    def _evict(self) -> None:
        """Remove all requests in progress from the device and put them at the front of `_waiting`."""

    @abstractmethod
    def _refresh(self) -> None:
        """Update what the engine derives from the model's parameters."""

    def _check(self, requests: Sequence[Request]) -> None:
        check_prompts([request.prompt_ids for request in requests], num_ids=num_embeddings(self._source))
        self._check_lengths(requests)
        for params in {request.params for request in requests}:
            assert params.max_new_tokens > 0
            stop_strings(params, self._decode)

    def _queue(self, requests: Sequence[Request]) -> list[int]:
        """Queue checked requests; returns their numbers."""
        keys = response_keys([(request.prompt_ids, request.copy) for request in requests])
        settings = {request.params for request in requests}
        ends = {params: (frozenset(params.stop_token_ids), stop_strings(params, self._decode)) for params in settings}
        first, self._next_number = self._next_number, self._next_number + len(requests)
        for number, (request, key) in enumerate(zip(requests, keys, strict=True), start=first):
            stop, strings = ends[request.params]
            self._unfinished[number] = PartialResponse(
                number=number,
                prompt_ids=tuple(request.prompt_ids),
                params=request.params,
                seed=call_seed(request.params.seed),
                key=key,
                stop=stop,
                strings=strings,
            )
            self._waiting.append(self._unfinished[number])
        return list(range(first, self._next_number))

    def _check_lengths(self, requests: Sequence[Request]) -> None:  # noqa: B027
        """Raise DataError for a request that is too long for the engine."""

    def _read(self, ended: Sequence[PartialResponse]) -> None:  # noqa: B027
        """Fetch the tokens of ended responses, in engines that keep them on the device."""

    @property
    def _coming(self) -> Iterator[Request]:
        """Requests of which this engine may take more."""
        return chain.from_iterable(queue.requests for queue in self._queues)

    def _take_requests(self) -> None:
        """Queue the requests for which there is room, of the first queue first."""
        for queue in self._queues:
            places = queue.take(self.num_unfinished - len(self._ended))
            numbers = self._queue([queue.requests[place] for place in places])
            queue.places.update(zip(numbers, places, strict=True))
            queue.unfinished.update(numbers)

    def _drain(self, queue: RequestQueue, on_progress: Progress | None, on_ended: OnEnded | None) -> bool:
        """Step until a queue is empty and its requests are in `_ended`; False if a nudge comes first."""
        reported = 0

        def report(num_running: int) -> None:
            nonlocal reported
            total = len(queue.places) - len(queue.unfinished) + num_running
            if on_progress is not None and total > reported:
                reported = total
                if on_progress(total) is False:
                    self._aborted = True

        self._note_ended(self._ended)
        self._tell(queue, self._ended, on_ended)
        self._take_requests()
        with nullcontext() if queue.is_done else self._generating():
            while True:
                aborted, nudged = self._asked()
                if aborted or nudged or queue.is_done:
                    break
                ended = self._advance(None, report)
                self._check_finite(ended)
                self._ended += ended
                self._note_ended(ended)
                self._tell(queue, ended, on_ended)
                report(0)
                self._take_requests()
        if aborted:
            self._end_all()
            self._note_ended(self._ended)
            for each in self._queues:
                each.is_empty = True
        return queue.is_done

    def _asked(self) -> tuple[bool, bool]:
        """Whether an abort and a nudge have come; all processes of the engine get the same result."""
        if self._together.num_processes == 1:
            return self._aborted, self._nudged
        asked = self._together.sum(torch.tensor([int(self._aborted), int(self._nudged)]))
        return bool(asked[0]), bool(asked[1])

    def _note_ended(self, ended: Sequence[PartialResponse]) -> None:
        for queue in self._queues:
            queue.unfinished.difference_update(partial.number for partial in ended)

    def _tell(self, queue: RequestQueue, ended: Sequence[PartialResponse], on_ended: OnEnded | None) -> None:
        new = [p for p in ended if p.number in queue.places and p.number not in queue.told]
        if new and on_ended is not None:
            self._read(new)
            queue.told.update(partial.number for partial in new)
            on_ended({queue.places[partial.number]: partial.response() for partial in new})

    def _end_all(self) -> None:
        """End every request with its tokens so far."""
        self._evict()
        ended = {partial.number for partial in self._ended}
        for number, partial in self._unfinished.items():
            if number not in ended:
                partial.finish_reason = "abort"
                self._ended.append(partial)
        self._waiting.clear()
        self._aborted = False

    def _forget(self, numbers: Iterable[int]) -> None:
        self._evict()
        for number in numbers:
            self._unfinished.pop(number, None)
        kept = [partial for partial in self._waiting if partial.number in self._unfinished]
        self._waiting.clear()
        self._waiting.extend(kept)
        self._ended = [partial for partial in self._ended if partial.number in self._unfinished]

    def _take(self, ended: Sequence[PartialResponse]) -> dict[int, Response]:
        """Remove ended requests from the session; returns their responses in the order of their numbers."""
        self._read(ended)
        self._check_finite(ended)
        taken = {partial.number for partial in ended}
        self._ended = [partial for partial in self._ended if partial.number not in taken]
        for number in taken:
            self._unfinished.pop(number)
        return {partial.number: partial.response() for partial in sorted(ended, key=lambda part: part.number)}

    def _check_finite(self, ended: Sequence[PartialResponse]) -> None:
        """Raise NotFiniteError for a response with a log-probability that is NaN or infinite."""
        for partial in sorted(ended, key=lambda part: part.number):
            if not math.isfinite(sum(partial.logprobs)):
                place = next(i for i, value in enumerate(partial.logprobs, start=1) if not math.isfinite(value))
                error = not_finite(f"token {place} of the response", dtype=self._plan.compute_dtype)
                error.number = partial.number
                raise error


@dataclass(slots=True, eq=False)
class RequestQueue:
    """Requests that several engines take from, and what one engine has taken.

    An engine takes more when an eighth of those that it may have in progress have ended.
    """

    requests: Sequence[Request]
    counter: Counter
    "gives each place to one engine"
    at_once: int
    "requests of the queue that the engine may have in progress"
    most: int | None = None
    "requests of all queues that it may have in progress"
    order: Sequence[int] = ()
    "the places of the requests in the order in which engines take them; by default their own"
    is_empty: bool = False
    places: dict[int, int] = field(default_factory=dict)
    "by number of the request in its session"
    unfinished: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    "numbers of the responses that `on_ended` has received"

    def __post_init__(self) -> None:
        self.is_empty = not self.requests
        self.order = self.order or range(len(self.requests))

    @property
    def is_done(self) -> bool:
        return self.is_empty and not self.unfinished

    def take(self, num_unfinished: int) -> Sequence[int]:
        """The places of the requests for which the engine has room."""
        room = self.at_once - len(self.unfinished)
        if self.most is not None:
            room = min(room, self.most - num_unfinished)
        if self.is_empty or room < max(1, self.at_once // 8):
            return ()
        first = self.counter(room)
        self.is_empty = first + room >= len(self.requests)
        return self.order[first : first + room]


def dealt(requests: Sequence[Request], share: int) -> list[int]:
    """The places of requests such that each run of `share` has about the same number of prompt tokens.

    Engines that have room for all requests begin them at once, and can hand none over later. The copies of a prompt,
    whose responses tend to have one length, are in different runs.
    """
    shares: list[list[int]] = [[] for _ in range(0, len(requests), share)]
    loads = [0] * len(shares)
    for place in sorted(range(len(requests)), key=lambda place: -len(requests[place].prompt_ids)):
        lightest = min((n for n, own in enumerate(shares) if len(own) < share), key=lambda n: (loads[n], n))
        shares[lightest].append(place)
        loads[lightest] += len(requests[place].prompt_ids)
    return [place for own in sorted(shares, key=len, reverse=True) for place in own]


def requests_for(prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1) -> list[Request]:
    """`group_size` requests per prompt. All occurrences of a prompt share one count of copies."""
    params = replace(params, seed=call_seed(params.seed)) if prompts else params
    copies: Counts[tuple[int, ...]] = Counts()
    requests = []
    for prompt in map(tuple, prompts):
        first, copies[prompt] = copies[prompt], copies[prompt] + group_size
        requests += [Request(prompt_ids=prompt, params=params, copy=first + copy) for copy in range(group_size)]
    return requests
