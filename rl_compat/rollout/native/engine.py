"""The engine of this project: plain PyTorch over a fixed cache, slots refilled as responses end."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import nn

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.counter_rng import call_seed
from rl_compat.rollout.inference import attention_set_to, check_prompts, check_range, generating, num_embeddings
from rl_compat.rollout.native.attention import attention_name, register
from rl_compat.rollout.native.cuda_graphs import StepGraphs
from rl_compat.rollout.native.decoder import SlotDecoder
from rl_compat.rollout.native.forwards import decoder_over
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.native.scheduler import Scheduler
from rl_compat.rollout.stop_strings import stop_strings
from rl_compat.rollout.types import Decode, Progress, Response, SamplingParams
from rl_compat.rollout.weights import HoldsWeights, RolloutWeights

Key = TypeVar("Key", bound=Hashable)

_CAPACITY_STEP = 128
_GRAPH_LENGTH_STEP = 128
_CHECK_EVERY = 8
_CHECK_LATEST = 64
_LENGTH_STEP = 16
_BUSY_TOKENS = 512
_SHORTEST_PREFIX = 8
_ROOMY = 2
"times the cache that a call needs: more is too much"
_PATIENCE = 4
"calls one after the other with too large a cache, until it shrinks"


class NativeEngine(HoldsWeights):
    """Generates with plain PyTorch. Needs no compiler, no Triton and no attention package.

    A prompt's last token is not prefilled: it is the first input of decoding, so that every response token comes
    from the same step, and the responses of a group share one prefill.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: RolloutPlan,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
        own_forward: bool = True,
        check_every: int | None = None,
    ) -> None:
        """`own_forward` runs the model's weights in this project's forward, else the model's own is called.

        `decode` gives the text of token ids; only stop strings need it. `check_every` tokens are drawn before they are
        looked at: on a GPU it saves waiting for it, at the price of tokens drawn in vain behind an end.
        """
        super().__init__(model, plan)
        self._num_valid_tokens = num_valid_tokens
        self._decode = decode
        self._own_forward = own_forward
        on_gpu = next(model.parameters()).is_cuda
        self._check_every = check_every or (_CHECK_EVERY if on_gpu else 1)
        self._decoder: SlotDecoder | None = None
        self._graphs = StepGraphs() if plan.cuda_graphs else None
        self._graphed_weights: tuple[int, ...] = ()
        self._roomy_calls = 0
        self._aborted = False
        register()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Progress | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts.

        DataError for an empty prompt, RLCompatError when fp16 products overflow.
        """
        assert params.max_new_tokens > 0 and group_size > 0
        check_prompts(prompts, num_ids=num_embeddings(self._source))
        strings = stop_strings(params, self._decode)
        self._aborted = False
        if not prompts:
            return []
        weights = self._awake()
        with generating(weights.model):
            decoder = self._decoder_for(weights, prompts, params, group_size=group_size)
            scheduler = Scheduler(
                prompts,
                group_size=group_size,
                num_slots=decoder.num_slots,
                max_new_tokens=params.max_new_tokens,
                stop_token_ids=params.stop_token_ids,
                stop_strings=strings,
            )
            with weights.applied(), self._attention(weights):
                self._run(decoder, scheduler, params, on_progress)
        responses = scheduler.responses(len(prompts))
        check_range(responses, dtype=self._plan.compute_dtype)
        return responses

    def abort(self) -> None:
        """End the call that is under way, from any thread: its unfinished responses come back as they are."""
        self._aborted = True

    def sleep(self) -> None:
        """Give back the cache, the graphs and the copy of the weights."""
        self._decoder = None
        if self._graphs is not None:
            self._graphs.drop()
        super().sleep()

    def _attention(self, weights: RolloutWeights) -> AbstractContextManager[None]:
        if self._own_forward:
            return nullcontext()
        return attention_set_to(weights.model.config, attention_name(weights.model))

    def _run(
        self, decoder: SlotDecoder, scheduler: Scheduler, params: SamplingParams, on_progress: Progress | None
    ) -> None:
        seed = call_seed(params.seed)
        prompts = [sequence.prompt_ids for sequence in scheduler.sequences]
        prefix = shared_prefix(prompts) if decoder.shares_prefix else 0
        if prefix:
            decoder.share_prefix(prompts[0][:prefix])
        while not scheduler.done:
            self._prefill(decoder, scheduler, prefix)
            decoder.move(scheduler.compact(), length=self._longest(scheduler))
            finished_before = scheduler.num_finished
            self._decode_some(decoder, scheduler, params, seed)
            news = scheduler.num_finished > finished_before
            if on_progress is not None and news and on_progress(scheduler.num_finished) is False:
                self._aborted = True
            if self._aborted:
                scheduler.abort()

    def _decode_some(self, decoder: SlotDecoder, scheduler: Scheduler, params: SamplingParams, seed: int) -> None:
        running = scheduler.running()
        if scheduler.take_changed():
            decoder.set_state(
                tokens=[s.next_input for s in running],
                positions=[s.next_position for s in running],
                keys=[s.key for s in running],
                drawn=[len(s.token_ids) for s in running],
            )
        count, active, step = 1, len(running), _LENGTH_STEP
        if self._check_every > 1:
            count = scheduler.steps_at_once(most=self._check_every, most_undisturbed=_CHECK_LATEST)
        if self._graphs is not None:
            active, step = graph_width(active, decoder.num_slots), _GRAPH_LENGTH_STEP
        length = min(_round_up(self._longest(scheduler) + count + 1, step), decoder.capacity)
        tokens, logprobs, raw = decoder.steps(active, count=count, length=length, params=params, seed=seed)
        scheduler.record(tokens.T.tolist(), logprobs.T.tolist(), raw.T.tolist() if params.raw_logprobs else None)

    def _prefill(self, decoder: SlotDecoder, scheduler: Scheduler, prefix: int) -> None:
        """Prompt tokens from `prefix` to the last but one of newly admitted sequences, in forwards of bounded size.

        A prompt is computed once for all of them; where a running sequence has it, its slot is copied.
        """
        admitted = scheduler.admit()
        if not admitted:
            return
        running = ((slot, item) for slot, item in enumerate(scheduler.active) if item and slot not in admitted)
        holders = {tuple(item.prompt_ids): slot for slot, item in running}
        copies: list[tuple[int, int]] = []
        slots: dict[tuple[int, ...], list[int]] = {}
        longest = 0
        for slot, sequence in admitted.items():
            prompt = tuple(sequence.prompt_ids)
            if prompt in holders:
                copies.append((holders[prompt], slot))
                longest = max(longest, len(prompt))
            elif len(prompt) > prefix + 1:
                slots.setdefault(prompt, []).append(slot)
        decoder.move(copies, length=longest)
        lengths = {prompt: len(prompt) - 1 - prefix for prompt in slots}
        for chunk in pack(lengths, max_tokens=self._plan.max_prefill_tokens):
            decoder.prefill([prompt[prefix:-1] for prompt in chunk], [slots[prompt] for prompt in chunk], prefix=prefix)

    def _decoder_for(
        self, weights: RolloutWeights, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int
    ) -> SlotDecoder:
        """The decoder of the last call when it is large enough and not much too large, else another one."""
        device = weights.model.get_input_embeddings().weight.device
        num_slots = min(self._plan.max_num_seqs, len(prompts) * group_size)
        capacity = _round_up(max(len(prompt) for prompt in prompts) + params.max_new_tokens, _CAPACITY_STEP)
        old = self._decoder
        weights.settle()
        self._drop_stale_graphs(weights.model)
        if old is not None and old.device == device:
            fits = old.num_slots >= num_slots and old.capacity >= capacity
            roomy = old.num_slots * old.capacity >= _ROOMY * num_slots * capacity
            self._roomy_calls = self._roomy_calls + 1 if roomy else 0
            if fits and self._roomy_calls < _PATIENCE:
                old.clear()
                return old
            if not fits:
                num_slots, capacity = max(num_slots, old.num_slots), max(capacity, old.capacity)
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
        """Graphs read weights at fixed addresses: weights that were moved away and back need new ones."""
        if self._graphs is None:
            return
        addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
        if addresses != self._graphed_weights:
            self._graphs.drop()
            self._graphed_weights = addresses

    def _longest(self, scheduler: Scheduler) -> int:
        return max((sequence.next_position for sequence in scheduler.active if sequence is not None), default=0)


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts start with, the last token of none among them; 0 when it is not worth a forward."""
    lowest, highest = min(map(tuple, prompts)), max(map(tuple, prompts))
    most = min(map(len, prompts)) - 1
    same = next((i for i in range(most) if lowest[i] != highest[i]), most)
    return same if same >= _SHORTEST_PREFIX and lowest != highest else 0


def pack(lengths: Mapping[Key, int], *, max_tokens: int) -> list[list[Key]]:
    """Keys in groups of similar length whose padded size `count * longest` stays within `max_tokens`.

    A group that is large enough to keep a device busy takes no key that would make padding more than an eighth of
    it. A key longer than `max_tokens` gets a group of its own.
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
    """Slots a captured step runs over: the next power of two up to 16, then the next multiple of 16."""
    width = 1 << (active - 1).bit_length() if active <= 16 else _round_up(active, 16)
    return min(width, num_slots)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
