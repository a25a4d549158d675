"""Which sequence sits in which slot: waiting sequences are admitted, finished ones leave, slots stay contiguous."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl_compat.rollout.types import Response
from rl_compat.trajectory import FinishReason


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """One response while it grows."""

    prompt: int
    "index of the prompt in the call"
    prompt_ids: Sequence[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
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
    ) -> None:
        self.sequences = [
            Running(prompt=index, prompt_ids=ids) for index, ids in enumerate(prompts) for _ in range(group_size)
        ]
        self.active: list[Running | None] = []
        self.num_finished = 0
        self._waiting = deque(self.sequences)
        self._num_slots = num_slots
        self._refill_at = max(1, num_slots // 8)
        self._max_new_tokens = max_new_tokens
        self._stop = frozenset(stop_token_ids)

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
        for slot, sequence in admitted.items():
            self._waiting.popleft()
            if slot == len(self.active):
                self.active.append(sequence)
            else:
                self.active[slot] = sequence
        return admitted

    def compact(self) -> list[tuple[int, int]]:
        """Close the gaps that finished sequences left by moving the last ones down: (source, target) slots."""
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

    def steps_left(self) -> int:
        """Most tokens that a running sequence can still get."""
        return max(self._max_new_tokens - len(sequence.token_ids) for sequence in self.running())

    def record(self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> None:
        """Append drawn tokens [steps][slots] to the running sequences; what follows an end is dropped."""
        for slot, sequence in enumerate(self.running()):
            for row, row_logprobs in zip(tokens, logprobs, strict=True):
                sequence.token_ids.append(row[slot])
                sequence.logprobs.append(row_logprobs[slot])
                sequence.finish_reason = self._finish_reason(sequence)
                if sequence.finish_reason is not None:
                    self.active[slot] = None
                    self.num_finished += 1
                    break

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
                )
            )
        return grouped

    def _finish_reason(self, sequence: Running) -> FinishReason | None:
        if sequence.token_ids[-1] in self._stop:
            return "stop"
        return "length" if len(sequence.token_ids) == self._max_new_tokens else None
