"""Decode steps for all slots: the forward, the draw, and their state in tensors with fixed addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor

from rl_compat.rollout.kernels.choice import chosen_ops, step_size
from rl_compat.rollout.kernels.small_batch_linear import small_batch_linear_on
from rl_compat.rollout.native.cuda_graphs import StepGraphs
from rl_compat.rollout.native.decoder_spec import read_spec
from rl_compat.rollout.native.hf_forward import HuggingFaceForward
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.native.own_forward import OwnForward
from rl_compat.rollout.projections import AdaptedProjection, Projection, SharedProjection
from rl_compat.rollout.sampling import Draw, plain_draw, uniforms
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.weights import SharedWeights


class Forward(Protocol):
    """The forward of a model over the slots of a cache."""

    reads_length: bool
    "whether the work of `decode` depends on its `length`"
    shares_prefix: bool
    "whether `prefill` can continue after positions that are already in the slots"

    def decode(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor: ...

    def prefill(self, ids: Tensor, rows: Tensor, slots: Tensor, *, prefix: int = 0) -> None: ...


class SlotDecoder:
    """A causal model over `num_slots` sequences of at most `capacity` tokens.

    The state of slot i is `tokens[i]`, the next input, and `positions[i]`, where it goes. A step feeds the first
    `active` slots, draws their next tokens and advances them; no step waits for the device. With `graphs` the same
    step is captured once per shape and replayed.
    """

    def __init__(
        self,
        forward: Forward,
        memory: SlotMemory,
        *,
        device: torch.device,
        num_valid_tokens: int | None,
        graphs: StepGraphs | None = None,
        draw: Draw = plain_draw,
    ) -> None:
        num_slots = memory.num_slots
        self.device = device
        self.num_slots = num_slots
        self.capacity = memory.capacity
        self._forward = forward
        self._memory = memory
        self._num_valid_tokens = num_valid_tokens
        self._graphs = graphs
        self._draw = draw
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(num_slots, device=device)
        self._raw_logprobs = torch.zeros(num_slots, device=device)
        self._uniform = torch.zeros(num_slots, dtype=torch.float64, device=device)
        self._keys = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(num_slots, dtype=torch.int64, device=device)

    @property
    def shares_prefix(self) -> bool:
        return self._forward.shares_prefix

    def share_prefix(self, ids: Sequence[int]) -> None:
        """Store the keys and values of a prefix that all prompts share in every slot."""
        row = torch.zeros(self.num_slots, dtype=torch.int64, device=self.device)
        every = torch.arange(self.num_slots, device=self.device)
        self._forward.prefill(torch.tensor([list(ids)], device=self.device), row, every)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]], *, prefix: int = 0) -> None:
        """Store keys and values of each prompt in its slots, after a shared prefix, in one right-padded forward."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
        rows = [row for row, targets in enumerate(slots) for _ in targets]
        targets = [slot for targets in slots for slot in targets]
        self._forward.prefill(
            ids.to(self.device),
            torch.tensor(rows, device=self.device),
            torch.tensor(targets, device=self.device),
            prefix=prefix,
        )

    def set_state(
        self,
        *,
        tokens: Sequence[int],
        positions: Sequence[int],
        keys: Sequence[int],
        seeds: Sequence[int],
        drawn: Sequence[int],
    ) -> None:
        """Set the next input and its position in the first slots, and key, seed and number of drawn tokens."""
        for state, values in (
            (self._tokens, tokens),
            (self._positions, positions),
            (self._keys, keys),
            (self._seeds, seeds),
            (self._drawn, drawn),
        ):
            state[: len(values)].copy_(torch.tensor(values))

    def move(self, moves: Sequence[tuple[int, int]], *, length: int) -> None:
        """Copy the first `length` positions of slots, given as (source, target)."""
        self._memory.move(moves, length=length)

    def clear(self) -> None:
        """Forget the tokens of all slots."""
        self._memory.clear()

    def steps(self, active: int, *, count: int, length: int, params: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
        """Draw `count` tokens for the first `active` slots: ids, log-probabilities and raw ones, [count, active].

        Steps attend to `length` positions. Responses that reach it must have ended before.
        """
        length = length if self._forward.reads_length else self.capacity
        tokens = torch.empty(count, active, dtype=torch.int64, device=self.device)
        logprobs = torch.empty(2, count, active, device=self.device)
        ahead = torch.arange(count, device=self.device)[:, None]
        numbers = uniforms(self._seeds[:active], self._keys[:active].expand(count, -1), self._drawn[:active] + ahead)

        def body() -> None:
            self._step(active, length, params)

        for step in range(count):
            self._uniform[:active].copy_(numbers[step])
            if self._graphs is None:
                body()
            else:
                key = (active, length, params.temperature, params.top_k, params.top_p, params.min_p)
                self._graphs.run((*key, params.raw_logprobs), body, state=(self._tokens, self._positions))
            tokens[step].copy_(self._tokens[:active])
            logprobs[0, step].copy_(self._logprobs[:active])
            if params.raw_logprobs:
                logprobs[1, step].copy_(self._raw_logprobs[:active])
        self._drawn[:active] += count
        return tokens, logprobs[0], logprobs[1]

    def _step(self, active: int, length: int, params: SamplingParams) -> None:
        tokens, positions = self._tokens[:active], self._positions[:active]
        logits = self._forward.decode(tokens, positions, length)
        drawn, logprobs, raw = self._draw(
            logits, self._uniform[:active], params, num_valid_tokens=self._num_valid_tokens
        )
        tokens.copy_(drawn)
        self._logprobs[:active].copy_(logprobs)
        if params.raw_logprobs:
            self._raw_logprobs[:active].copy_(raw)
        positions.add_(1).clamp_(max=length - 1)


def decoder_over(
    memory: SlotMemory,
    weights: SharedWeights,
    *,
    own: bool,
    num_valid_tokens: int | None = None,
    graphs: StepGraphs | None = None,
    kernel_architecture: str | None = None,
) -> SlotDecoder:
    """A decoder over the slots. Raises UnknownDecoderError with `own` for a model of an unknown family."""
    device = weights.model.get_input_embeddings().weight.device
    if not own:
        theirs = HuggingFaceForward(
            weights.model, memory, autocast_dtype=weights.autocast_dtype, captured=graphs is not None
        )
        return SlotDecoder(theirs, memory, device=device, num_valid_tokens=num_valid_tokens, graphs=graphs)
    spec, compute = read_spec(weights.model), weights.compute_dtype
    size = step_size(spec, rows=memory.num_slots, capacity=memory.capacity, compute=compute)
    ops, draw = chosen_ops(spec, size, architecture=kernel_architecture) or (None, plain_draw)
    head = weights.projection((spec.head,), torch.float32)
    ours = OwnForward(spec, memory, projection=weights.projection, head=head, compute_dtype=compute, ops=ops)
    for group in ours.projections:
        _speed_up(group, device, kernel_architecture)
    return SlotDecoder(ours, memory, device=device, num_valid_tokens=num_valid_tokens, graphs=graphs, draw=draw)


def _speed_up(projections: Sequence[Projection], device: torch.device, architecture: str | None) -> None:
    """Give layers of one shape the products for small batches, which hold them weakly, so that sleep frees them."""
    bases = [one.base if isinstance(one, AdaptedProjection) else one for one in projections]
    shared = [base for base in bases if isinstance(base, SharedProjection)]
    references = [ref(one) for one in shared]

    def weights() -> list[Tensor]:
        alive = [one for one in (reference() for reference in references) if one is not None]
        return [weight for weight in (one.whole_weight() for one in alive) if weight is not None]

    product = small_batch_linear_on(device, weights, architecture=architecture)
    for one in shared:
        one.small_batch = product
