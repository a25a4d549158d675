"""Continuous batching: waiting requests are admitted to free slots, finished ones leave, slots stay contiguous."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rl_compat.rollout.session import PartialResponse


class Scheduler:
    """Assigns responses to slots. Slot i holds `active[i]`; None is a free slot."""

    def __init__(self, waiting: deque[PartialResponse]) -> None:
        """`waiting` is the queue of the session, oldest first."""
        self.active: list[PartialResponse | None] = []
        self.num_slots = 0
        self._waiting = waiting
        self._changed = True

    def admit(self) -> dict[int, PartialResponse]:
        """Move waiting responses to free slots; returns them by slot.

        With many slots, several are freed before any is refilled, so that prefills stay large. All responses in slots
        have the same draw settings; a waiting response with other settings waits until the slots are empty.
        """
        free = [slot for slot, partial in enumerate(self.active) if partial is None]
        free += range(len(self.active), self.num_slots)
        occupied = self.num_slots - len(free)
        refill_at = max(1, self.num_slots // 8)
        if not self._waiting or (occupied and len(free) < min(refill_at, len(self._waiting))):
            return {}
        draw = next((part for part in self.active if part), self._waiting[0]).params.draw_settings
        admitted: dict[int, PartialResponse] = {}
        for slot in free:
            if not self._waiting or self._waiting[0].params.draw_settings != draw:
                break
            admitted[slot] = self._waiting.popleft()
            if slot == len(self.active):
                self.active.append(admitted[slot])
            else:
                self.active[slot] = admitted[slot]
        self._changed |= bool(admitted)
        return admitted

    def compact(self) -> list[tuple[int, int]]:
        """Close the gaps that finished responses left by moving the last ones down: (source, target) slots.

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

    def running(self) -> list[PartialResponse]:
        """The responses in the slots, which must have no gaps."""
        running = [partial for partial in self.active if partial is not None]
        assert len(running) == len(self.active)
        return running

    def steps_at_once(self, *, most: int, most_undisturbed: int) -> int:
        """Tokens to draw before the host looks at them; if only limits end responses, up to the first limit."""
        running = self.running()
        left = [partial.room for partial in running]
        if any(partial.stop or partial.strings for partial in running):
            return min(most, max(left))
        return min(most_undisturbed, min(left))

    def take_changed(self) -> bool:
        """Whether the responses in the slots have changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def record(
        self,
        tokens: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        raw_logprobs: Sequence[Sequence[float]] | None = None,
        *,
        version: int,
    ) -> list[PartialResponse]:
        """Append drawn tokens [slots][steps] to the responses in the slots; returns those that ended."""
        ended = []
        for slot, partial in enumerate(self.running()):
            raw = () if raw_logprobs is None else raw_logprobs[slot]
            partial.extend(tokens[slot], logprobs[slot], raw, version=version)
            if partial.finish_reason is not None:
                self.active[slot] = None
                ended.append(partial)
        self._changed |= bool(ended)
        return ended

    def evict(self) -> None:
        """Move the responses in the slots to the front of the queue."""
        self._waiting.extendleft(reversed([partial for partial in self.active if partial is not None]))
        self.active, self._changed = [], True
