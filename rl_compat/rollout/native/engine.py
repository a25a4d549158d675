"""The native engine: PyTorch over a fixed cache, with slots that are refilled as responses end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.inference import attention_set_to, generating
from rl_compat.rollout.native.cuda_graphs import StepGraphs
from rl_compat.rollout.native.decoder import SlotDecoder, decoder_over
from rl_compat.rollout.native.hf_forward import attention_name
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.native.scheduler import Scheduler
from rl_compat.rollout.sampling import signed64
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import Decode
from rl_compat.rollout.weights import HoldsWeights, SharedWeights

Key = TypeVar("Key", bound=Hashable)

_CAPACITY_STEP = 128
_GRAPH_LENGTH_STEP = 128
_CHECK_EVERY = 8
_CHECK_LATEST = 64
_LENGTH_STEP = 16
_BUSY_TOKENS = 512
_SHORTEST_PREFIX = 8
_ROOMY = 2
"a cache of more than this multiple of a call's need is too large"
_PATIENCE = 4
"consecutive calls with too large a cache after which it shrinks"


class NativeEngine(HoldsWeights):
    """Generates with plain PyTorch. Needs no compiler, no Triton and no attention package.

    A prompt's last token is not prefilled: it is the first input of decoding, so that every response token comes
    from the same step, and the responses of a group share one prefill.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: RolloutPlan,
        *,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
        own_forward: bool = True,
        check_every: int | None = None,
    ) -> None:
        """`own_forward` runs this project's forward over the weights; otherwise the model's own forward is called.

        `check_every` is the number of tokens drawn before the host looks at them: on a GPU this avoids waiting for the
        device, at the cost of tokens sampled after the end of a sequence.
        """
        super().__init__(model, plan, num_valid_tokens=num_valid_tokens, decode=decode)
        self._own_forward = own_forward
        on_gpu = next(model.parameters()).is_cuda
        self._check_every = check_every or (_CHECK_EVERY if on_gpu else 1)
        self._scheduler = Scheduler(self._waiting)
        self._prefix: tuple[int, ...] = ()
        self._sized_for = 0
        self._decoder: SlotDecoder | None = None
        self._graphs = StepGraphs() if plan.cuda_graphs else None
        self._graphed_weights: tuple[int, ...] = ()
        self._roomy_calls = 0

    def sleep(self) -> None:
        """Pause, and release the cache, the graphs and the copy of the weights."""
        self._evict()
        self._decoder = None
        if self._graphs is not None:
            self._graphs.drop()
        super().sleep()

    @contextmanager
    def _generating(self) -> Iterator[None]:
        weights = self._awake()
        with generating(weights.model):
            self._prepare(weights)
            attention = None if self._own_forward else attention_name(weights.model)
            with weights.applied(), attention_set_to(weights.model.config, attention):
                yield

    def _evict(self) -> None:
        self._scheduler.evict()

    def _advance(self, max_tokens: int | None, report: Callable[[int], None]) -> list[PartialResponse]:
        del report
        assert self._weights is not None
        if self._sized_for < self._next_number:
            self._prepare_slots(self._weights)
        decoder, scheduler = self._decoder, self._scheduler
        assert decoder is not None
        self._prefill(decoder, scheduler.admit())
        decoder.move(scheduler.compact(), length=self._longest())
        return self._decode_some(decoder, max_tokens)

    def _decode_some(self, decoder: SlotDecoder, max_tokens: int | None) -> list[PartialResponse]:
        scheduler = self._scheduler
        running = scheduler.running()
        params = running[0].params
        if scheduler.take_changed():
            decoder.set_state(
                tokens=[partial.last_token for partial in running],
                positions=[partial.length - 1 for partial in running],
                keys=[partial.key for partial in running],
                seeds=[signed64(partial.seed) for partial in running],
                drawn=[len(partial.token_ids) for partial in running],
            )
        count, active, step = 1, len(running), _LENGTH_STEP
        if self._check_every > 1:
            count = scheduler.steps_at_once(most=self._check_every, most_undisturbed=_CHECK_LATEST)
        if max_tokens is not None:
            count = min(count, max_tokens)
        if self._graphs is not None:
            active, step = graph_width(active, decoder.num_slots), _GRAPH_LENGTH_STEP
        length = min(_round_up(self._longest() + count + 1, step), decoder.capacity)
        tokens, logprobs, raw = decoder.steps(active, count=count, length=length, params=params)
        return scheduler.record(
            tokens.T.tolist(),
            logprobs.T.tolist(),
            raw.T.tolist() if params.raw_logprobs else None,
            version=self.policy_version,
        )

    def _prefill(self, decoder: SlotDecoder, admitted: Mapping[int, PartialResponse]) -> None:
        """Prefill all tokens except the last of newly admitted contexts, in forwards of bounded size.

        A context is computed once for all slots that need it, or copied from a slot that has it. The shared prefix is
        in all slots until a context without it overwrites it.
        """
        if not admitted:
            return
        contexts = {slot: partial.context for slot, partial in admitted.items()}
        prefix = len(self._prefix)
        if prefix and any(context[:prefix] != self._prefix for context in contexts.values()):
            self._prefix, prefix = (), 0
        in_use = ((slot, item) for slot, item in enumerate(self._scheduler.active) if item and slot not in admitted)
        holders = {partial.prompt_ids: slot for slot, partial in in_use}
        copies: list[tuple[int, int]] = []
        slots: dict[tuple[int, ...], list[int]] = {}
        longest = 0
        for slot, context in contexts.items():
            if context in holders:
                copies.append((holders[context], slot))
                longest = max(longest, len(context))
            elif len(context) > prefix + 1:
                slots.setdefault(context, []).append(slot)
        decoder.move(copies, length=longest)
        lengths = {context: len(context) - 1 - prefix for context in slots}
        for chunk in pack(lengths, max_tokens=self._plan.max_prefill_tokens):
            decoder.prefill(
                [context[prefix:-1] for context in chunk], [slots[context] for context in chunk], prefix=prefix
            )

    def _prepare(self, weights: SharedWeights) -> None:
        """Prepare slots for all requests; the weights may have moved since the last step."""
        device = weights.model.get_input_embeddings().weight.device
        if self._decoder is not None and self._decoder.device != device:
            self._evict()
            self._decoder = None
        weights.settle()
        self._drop_stale_graphs(weights.model)
        self._prepare_slots(weights)

    def _prepare_slots(self, weights: SharedWeights) -> None:
        """Provide enough slots for new requests, and prefill the shared prefix in empty ones."""
        fresh = not any(self._scheduler.active)
        if self._waiting and (fresh or self._sized_for < self._next_number):
            decoder = self._decoder_for(weights, fresh=fresh)
            self._scheduler.num_slots = decoder.num_slots
            if not any(self._scheduler.active):
                contexts = [partial.context for partial in self._waiting]
                contexts += [tuple(request.prompt_ids) for request in self._coming]
                self._prefix = contexts[0][: shared_prefix(contexts)] if decoder.shares_prefix else ()
                if self._prefix:
                    decoder.share_prefix(self._prefix)
        self._sized_for = self._next_number

    def _decoder_for(self, weights: SharedWeights, *, fresh: bool) -> SlotDecoder:
        """The current decoder if it is large enough and not much too large, else a new one.

        A decoder in use is replaced only if it is too small; requests in progress are then prefilled again.
        """
        unfinished = [*filter(None, self._scheduler.active), *self._waiting]
        num_slots = min(self._plan.max_num_seqs, len(unfinished))
        longest = max(partial.length + partial.room for partial in unfinished)
        coming = (len(request.prompt_ids) + request.params.max_new_tokens for request in self._coming)
        capacity = _round_up(max([longest, *coming]), _CAPACITY_STEP)
        old = self._decoder
        if old is not None:
            fits = old.num_slots >= num_slots and old.capacity >= capacity
            if fresh:
                roomy = old.num_slots * old.capacity >= _ROOMY * num_slots * capacity
                self._roomy_calls = self._roomy_calls + 1 if roomy else 0
            if fits and (not fresh or self._roomy_calls < _PATIENCE):
                if fresh:
                    old.clear()
                return old
            if not fits:
                num_slots, capacity = max(num_slots, old.num_slots), max(capacity, old.capacity)
        self._evict()
        self._roomy_calls = 0
        self._decoder = old = None
        if self._graphs is not None:
            self._graphs.drop()
        self._decoder = decoder_over(
            SlotMemory(num_slots=num_slots, capacity=capacity),
            weights,
            own=self._own_forward,
            num_valid_tokens=self._num_valid_tokens,
            graphs=self._graphs,
            kernel_architecture=self._plan.kernel_architecture,
        )
        weights.settle()
        self._drop_stale_graphs(weights.model)
        return self._decoder

    def _drop_stale_graphs(self, model: nn.Module) -> None:
        """Drop the graphs if weights have moved, since graphs read weights at fixed addresses."""
        if self._graphs is None:
            return
        addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
        if addresses != self._graphed_weights:
            self._graphs.drop()
            self._graphed_weights = addresses

    def _longest(self) -> int:
        return max((partial.length - 1 for partial in self._scheduler.active if partial is not None), default=0)


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """The length of the prefix that all prompts share, without their last tokens; 0 if it is not worth a forward."""
    lowest, highest = min(map(tuple, prompts)), max(map(tuple, prompts))
    most = min(map(len, prompts)) - 1
    same = next((i for i in range(most) if lowest[i] != highest[i]), most)
    return same if same >= _SHORTEST_PREFIX and lowest != highest else 0


def pack(lengths: Mapping[Key, int], *, max_tokens: int) -> list[list[Key]]:
    """Keys in groups of similar length whose padded size `count * longest` stays within `max_tokens`.

    A group that is large enough to keep a device busy accepts no key that would raise its padding above an eighth. A
    key longer than `max_tokens` has its own group.
    """
    groups: list[list[Key]] = []
    longest = total = 0
    for key in sorted(lengths, key=lambda key: -lengths[key]):
        padded = (len(groups[-1]) + 1) * longest if groups else 0
        wasteful = padded > _BUSY_TOKENS and 8 * (padded - total - lengths[key]) > padded
        if groups and padded <= max_tokens and not wasteful:
            groups[-1].append(key)
        else:
            groups.append([key])
            longest, total = lengths[key], 0
        total += lengths[key]
    return groups


def graph_width(active: int, num_slots: int) -> int:
    """The number of slots of a captured step: the next power of two up to 16, then the next multiple of 16."""
    width = 1 << (active - 1).bit_length() if active <= 16 else _round_up(active, 16)
    return min(width, num_slots)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
