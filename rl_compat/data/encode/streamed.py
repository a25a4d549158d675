"""Prompts of a dataset larger than memory: rows on disk, encoded on access."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import overload

from rl_compat.data.encode.prompts import EncodingError, Overlong, PromptEncoder, encode_row, too_long_error
from rl_compat.data.form.rows import PromptRow
from rl_compat.data.read.reading import BadRows, LoadedRows
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
