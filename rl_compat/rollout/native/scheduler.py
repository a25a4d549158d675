"""Which sequence sits in which slot: waiting sequences are admitted, finished ones leave, slots stay contiguous."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl_compat.rollout.counter_rng import response_keys
from rl_compat.rollout.stop_strings import StopStrings
from rl_compat.rollout.types import Response
from rl_compat.trajectory import FinishReason


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """One response while it grows."""

    prompt: int
    "index of the prompt in the call"
    key: int
    "of its random numbers"
    prompt_ids: Sequence[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def next_input(self) -> int:
        """The token whose successor is drawn next."""
        return self.token_ids[-1] if self.token_ids else self.prompt_ids[-1]

    @property
    def next_position(self) -> int:
        """Position of `next_input`."""
        return len(self.prompt_ids) + len(self.token_ids) - 1


class Scheduler:
    """All responses of one call over `num_slots` slots. Slot i holds `active[i]`; None is a free slot."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        num_slots: int,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        stop_strings: StopStrings | None = None,
    ) -> None:
        of_prompt = [index for index in range(len(prompts)) for _ in range(group_size)]
        self.sequences = [
            Running(prompt=index, key=key, prompt_ids=prompts[index])
            for index, key in zip(of_prompt, response_keys([prompts[i] for i in of_prompt]), strict=True)
        ]
        self.active: list[Running | None] = []
        self.num_finished = 0
        self._waiting = deque(self.sequences)
        self._num_slots = num_slots
        self._refill_at = max(1, num_slots // 8)
        self._max_new_tokens = max_new_tokens
        self._stop = frozenset(stop_token_ids)
        self._stop_strings = stop_strings
        self._changed = True

    @property
    def done(self) -> bool:
        return self.num_finished == len(self.sequences)

    def admit(self) -> dict[int, Running]:
        """Give waiting sequences the free slots, by slot. A few slots are gathered first, so prefills stay large."""
        free = [slot for slot, sequence in enumerate(self.active) if sequence is None]
        free += range(len(self.active), self._num_slots)
        occupied = self._num_slots - len(free)
        if occupied and len(free) < min(self._refill_at, len(self._waiting)):
            return {}
        admitted = dict(zip(free, self._waiting, strict=False))
        self._changed |= bool(admitted)
        for slot, sequence in admitted.items():
            self._waiting.popleft()
            if slot == len(self.active):
                self.active.append(sequence)
            else:
                self.active[slot] = sequence
        return admitted

    def compact(self) -> list[tuple[int, int]]:
        """Close the gaps that finished sequences left by moving the last ones down: (source, target) slots.

        No slot is both a source and a target.
        """
        moves = []
        for target in range(len(self.active)):
            while self.active and self.active[-1] is None:
                self.active.pop()
            if target < len(self.active) and self.active[target] is None:
                moves.append((len(self.active) - 1, target))
                self.active[target] = self.active.pop()
        return moves

    def running(self) -> list[Running]:
        """The sequences of the slots, which must have no gaps."""
        running = [sequence for sequence in self.active if sequence is not None]
        assert len(running) == len(self.active)
        return running

    def steps_at_once(self, *, most: int, most_undisturbed: int) -> int:
        """Tokens to draw before looking at them. Where only the limit ends a response, up to the first that it ends."""
        left = [self._max_new_tokens - len(sequence.token_ids) for sequence in self.running()]
        if self._stop or self._stop_strings is not None:
            return min(most, max(left))
        return min(most_undisturbed, min(left))

    def take_changed(self) -> bool:
        """Whether other sequences sit in the slots than when this was last asked."""
        changed, self._changed = self._changed, False
        return changed

    def record(
        self,
        tokens: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        raw_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Append drawn tokens [slots][steps] to the running sequences; what follows an end is dropped."""
        for slot, sequence in enumerate(self.running()):
            before = len(sequence.token_ids)
            count, reason = self._end(sequence, tokens[slot])
            sequence.token_ids += tokens[slot][:count]
            if self._stop_strings is not None:
                end = self._stop_strings.end(sequence.token_ids, num_checked=before)
                if end is not None:
                    count, reason = end - before, "stop"
                    del sequence.token_ids[end:]
            sequence.logprobs += logprobs[slot][:count]
            if raw_logprobs is not None:
                sequence.raw_logprobs += raw_logprobs[slot][:count]
            if reason is not None:
                sequence.finish_reason = reason
                self.active[slot] = None
                self.num_finished += 1
                self._changed = True

    def abort(self) -> None:
        """End every sequence that is not finished, those that wait with no token at all."""
        for sequence in self.sequences:
            sequence.finish_reason = sequence.finish_reason or "abort"
        self.active, self.num_finished = [], len(self.sequences)
        self._waiting.clear()

    def responses(self, num_prompts: int) -> list[list[Response]]:
        """All responses, grouped by prompt, in the order of the prompts."""
        grouped: list[list[Response]] = [[] for _ in range(num_prompts)]
        for sequence in self.sequences:
            assert sequence.finish_reason is not None
            grouped[sequence.prompt].append(
                Response(
                    token_ids=tuple(sequence.token_ids),
                    logprobs=tuple(sequence.logprobs),
                    finish_reason=sequence.finish_reason,
                    raw_logprobs=tuple(sequence.raw_logprobs),
                )
            )
        return grouped

    def _end(self, sequence: Running, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the new tokens belong to the response, and why it ends there."""
        room = self._max_new_tokens - len(sequence.token_ids)
        for count, token in enumerate(tokens[:room], start=1):
            if token in self._stop:
                return count, "stop"
        return (room, "length") if len(tokens) >= room else (len(tokens), None)
