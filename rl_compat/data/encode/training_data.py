"""The training prompts of a run, in memory or encoded on access from disk, and their order: one dataset or several."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, overload

from rl_compat.data.encode.prompts import (
    EncodingError,
    Overlong,
    PromptEncoder,
    build_prompts,
    encode_row,
    too_long_error,
)
from rl_compat.data.form.rows import PromptRow
from rl_compat.data.order.batches import Keep, MixtureOrder, Order, PromptOrder
from rl_compat.data.order.fingerprint import Fingerprint
from rl_compat.data.read.reading import BadRows, LoadedRows, Reading, SourceRows, load_sources, open_source
from rl_compat.data.read.records import Records
from rl_compat.errors import DataError
from rl_compat.trajectory import Prompt

NUM_KEPT_PROMPTS = 1024
NUM_SAMPLED = 64


class StreamedPrompts(Sequence[Prompt]):
    """All rows as a sequence. A row may turn out unusable: `usable` tells, and indexing it raises DataError.

    Memory holds the last prompts that were accessed.
    """

    def __init__(
        self, loaded: LoadedRows, *, chat: PromptEncoder, max_prompt_length: int, overlong: Overlong, bad_rows: BadRows
    ) -> None:
        self._rows: Sequence[PromptRow] = loaded.rows
        self._sources = loaded.sources
        self._chat = chat
        self._max_prompt_length = max_prompt_length
        self._overlong = overlong
        self._bad_rows = bad_rows
        self._prompt = lru_cache(NUM_KEPT_PROMPTS)(self._encode)
        self._num_left_out = 0
        self._notes: list[str] = []

    def __len__(self) -> int:
        """The number of rows, usable or not."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        """The prompt of a row. Raises DataError for a row that cannot be used or read."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        prompt = self._prompt(range(len(self))[index])
        if prompt is None:
            raise DataError(f"row {self._rows[index].row} cannot be used as a prompt")
        return prompt

    def usable(self, index: int) -> bool:
        return self._prompt(index) is not None

    def sample(self) -> list[Prompt]:
        """The usable prompts at the beginning of each source. Raises DataError where a source has none there."""
        found: list[Prompt] = []
        start = 0
        for source in self._sources:
            indexes = range(start, start + min(source.num_rows, NUM_SAMPLED))
            prompts = [prompt for index in indexes if (prompt := self._prompt(index)) is not None]
            if not prompts:
                why = f": {self._notes[-1]}" if self._notes else ""
                raise DataError(
                    f"none of the first {len(indexes)} rows of `{source.name}` can be used{why}",
                    hint="`rlc data check` lists such rows; `data.max_prompt_length` is the limit in tokens",
                )
            found += prompts
            start += source.num_rows
        return found

    def take_notes(self) -> list[str]:
        """Notes since the last call: one at the 1st, 10th, 100th, … row that was left out."""
        notes, self._notes = self._notes, []
        return notes

    def _encode(self, index: int) -> Prompt | None:
        row, limit = self._rows[index], self._max_prompt_length
        try:
            prompt, length = encode_row(row, chat=self._chat, max_prompt_length=limit, overlong=self._overlong)
        except EncodingError as error:
            if self._bad_rows == "error":
                raise EncodingError(error.kind, f"row {row.row}: {error.message}", hint=error.hint) from error
            self._leave_out(row.row, error.message)
            return None
        if prompt is None and self._overlong == "error":
            raise too_long_error(row.row, length, limit=limit)
        if prompt is None:
            self._leave_out(row.row, f"{length} tokens, and the limit is {limit}")
        return prompt

    def _leave_out(self, row: int, why: str) -> None:
        self._num_left_out += 1
        if self._num_left_out in (10**power for power in range(10)):
            so_far = f" ({self._num_left_out} rows so far)" if self._num_left_out > 1 else ""
            self._notes.append(f"row {row} is left out{so_far}: {why}")


MEMORY_PER_BYTE = 12
"bytes of a row in memory, as text and as token ids, for each byte in its file"
SHARE_OF_MEMORY = 0.25
"largest share of the memory for rows; larger data is streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Prompts by index; those of each source follow each other."""

    prompts: Sequence[Prompt]
    counts: tuple[int, ...]
    "the number of prompts of each source"
    fingerprint: Fingerprint
    weights: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def sample(self) -> Sequence[Prompt]:
        """All prompts, or the first ones of each streamed source, to check before a run."""
        return self.prompts.sample() if isinstance(self.prompts, StreamedPrompts) else self.prompts

    def order(self, batch_size: int, *, shuffle: bool, seed: int) -> Order:
        """Batches of indexes into the prompts. Raises DataError when there are too few rows."""
        keep: Keep = self.prompts.usable if isinstance(self.prompts, StreamedPrompts) else lambda row: True
        how: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "keep": keep, "fingerprint": self.fingerprint}
        return order_of(self.counts, self.weights, batch_size, **how)


def load_training(
    sources: Sequence[str | Records],
    reading: Reading,
    *,
    chat: PromptEncoder,
    max_prompt_length: int,
    overlong: Overlong = "filter",
    max_samples: int | None = None,
    weights: Sequence[float] = (),
    streaming: bool = False,
) -> TrainingData:
    """The prompts of all sources. With `weights`, one per source, they are a mixture, and `max_samples` is divided.

    A streamed row that is too long is left out when it is drawn, and counted. Raises DataError.
    """
    loaded = load_sources(sources, reading, limits=sample_limits(max_samples, weights), on_disk=streaming)
    limit: dict[str, Any] = {
        "chat": chat,
        "max_prompt_length": max_prompt_length,
        "overlong": overlong,
        "bad_rows": reading.bad_rows,
    }
    if streaming:
        counts = tuple(source.num_rows for source in loaded.sources)
        prompts = StreamedPrompts(loaded, **limit)
        return TrainingData(prompts=prompts, counts=counts, fingerprint=loaded.fingerprint, weights=tuple(weights))
    built = build_prompts(loaded.rows, **limit)
    counts = counts_of([prompt.row for prompt in built.prompts], loaded.sources)
    check_shares(counts, loaded.sources, weights)
    return TrainingData(
        prompts=built.prompts,
        counts=counts,
        fingerprint=loaded.fingerprint,
        weights=tuple(weights),
        notes=built.notes,
    )


def counts_of(row_numbers: Sequence[int], sources: Sequence[SourceRows]) -> tuple[int, ...]:
    """How many of the rows, which are in order, come from each source."""
    starts = [bisect_left(row_numbers, source.first_row) for source in sources]
    return tuple(end - start for start, end in pairwise([*starts, len(row_numbers)]))


def check_shares(counts: Sequence[int], sources: Sequence[SourceRows], weights: Sequence[float]) -> None:
    """Raise DataError for a source of a mixture without a usable row."""
    for source, count in zip(sources, counts, strict=True):
        if weights and not count:
            raise DataError(
                f"no row of `{source.name}` can be used, and `data.mixture_weights` gives it a share",
                hint="raise `data.max_prompt_length` or `data.max_response_length`, or remove the file",
            )


def order_of(counts: Sequence[int], weights: Sequence[float], batch_size: int, **how: Any) -> Order:
    """The order of all sources, a mixture where they have weights. Raises DataError when there are too few rows."""
    if weights:
        return MixtureOrder(counts, weights, batch_size, **how)
    return PromptOrder(sum(counts), batch_size, **how)


def left_out(prompts: Sequence[Prompt]) -> list[str]:
    """Notes about rows that streaming left out since the last call."""
    return prompts.take_notes() if isinstance(prompts, StreamedPrompts) else []


def should_stream(sources: Sequence[str | Records], *, memory_bytes: int) -> bool:
    """Whether the rows would take more than their share of the memory, or come from a stream of unknown length."""
    reading = Reading(task="prompts")
    size = sum(file.num_bytes for source in sources for file in open_source(source, reading))
    return size * MEMORY_PER_BYTE > SHARE_OF_MEMORY * memory_bytes


def sample_limits(max_samples: int | None, weights: Sequence[float]) -> list[int | None] | int | None:
    """The largest number of rows of each source in a mixture, or of all together."""
    if max_samples is None or not weights:
        return max_samples
    return [max(1, round(max_samples * weight / sum(weights))) for weight in weights]
