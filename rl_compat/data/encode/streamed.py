"""Prompts of a dataset larger than memory: read in pieces, encoded on access."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from rl_compat.data.encode.prompts import Overlong, PromptEncoder, encode_row, too_long_error
from rl_compat.data.form.columns import Record
from rl_compat.data.form.conversion import to_row
from rl_compat.data.form.patterns import Form
from rl_compat.data.form.turns import Unusable
from rl_compat.data.order.epochs import BLOCK_BYTES, BLOCK_ROWS
from rl_compat.data.read.records import Piece, Records
from rl_compat.errors import DataError
from rl_compat.trajectory import Prompt

NUM_KEPT_PROMPTS = 1024
NUM_SAMPLED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedFile:
    """A source with its form and its pieces."""

    file: Records
    form: Form
    pieces: tuple[Piece, ...]
    split: str


class StreamedPrompts(Sequence[Prompt]):
    """All rows as a sequence. A row may turn out unusable: `usable` tells, and indexing it raises DataError.

    Memory holds the pieces of `num_blocks` blocks and the last prompts that were accessed.
    """

    def __init__(
        self,
        files: Sequence[StreamedFile],
        *,
        chat: PromptEncoder,
        max_prompt_length: int,
        overlong: Overlong,
        num_blocks: int = 1,
    ) -> None:
        self._files = files
        self.pieces = [piece for file in files for piece in file.pieces]
        self._starts = [piece.first_row for piece in self.pieces]
        self._chat = chat
        self._max_prompt_length = max_prompt_length
        self._overlong = overlong
        self._most_rows, self._most_bytes = BLOCK_ROWS * num_blocks, BLOCK_BYTES * num_blocks
        self._records: OrderedDict[int, list[Record]] = OrderedDict()
        self._prompts: OrderedDict[int, Prompt | None] = OrderedDict()
        self._num_left_out = 0
        self._notes: list[str] = []

    def __len__(self) -> int:
        """The number of rows, usable or not."""
        return sum(piece.num_rows for piece in self.pieces)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        """The prompt of a row. Raises DataError for a row that cannot be used or read."""
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        prompt = self._prompt(range(len(self))[index])
        if prompt is None:
            raise DataError(f"row {index} cannot be used as a prompt")
        return prompt

    def usable(self, row: int) -> bool:
        return self._prompt(row) is not None

    def sample(self) -> list[Prompt]:
        """The usable prompts at the beginning of each file. Raises DataError where a file has none there."""
        found: list[Prompt] = []
        for file in self._files:
            first = file.pieces[0]
            rows = range(first.first_row, first.first_row + min(first.num_rows, NUM_SAMPLED))
            prompts = [prompt for row in rows if (prompt := self._prompt(row)) is not None]
            if not prompts:
                raise DataError(
                    f"none of the first {len(rows)} rows of `{file.file.name}` can be used: {self._notes[-1]}",
                    hint="`rlc data check` lists such rows; `data.max_prompt_length` is the limit in tokens",
                )
            found += prompts
        return found

    def take_notes(self) -> list[str]:
        """Notes since the last call: one at the 1st, 10th, 100th, … row that was left out."""
        notes, self._notes = self._notes, []
        return notes

    def _prompt(self, row: int) -> Prompt | None:
        if row in self._prompts:
            self._prompts.move_to_end(row)
            return self._prompts[row]
        prompt = self._prompts[row] = self._encode(row)
        if len(self._prompts) > NUM_KEPT_PROMPTS:
            self._prompts.popitem(last=False)
        return prompt

    def _encode(self, number: int) -> Prompt | None:
        piece = self.pieces[bisect_right(self._starts, number) - 1]
        file = self._files[piece.file]
        offset = number - piece.first_row
        record = self._records_of(piece)[offset]
        try:
            row = to_row(record, file.form, row=number, index=piece.index + offset, split=file.split)
        except Unusable as error:
            self._leave_out(number, str(error))
            return None
        limit = self._max_prompt_length
        prompt, length = encode_row(row, chat=self._chat, max_prompt_length=limit, overlong=self._overlong)
        if prompt is None and self._overlong == "error":
            raise too_long_error(number, length, limit=limit)
        if prompt is None:
            self._leave_out(number, f"{length} tokens, and the limit is {limit}")
        return prompt

    def _leave_out(self, number: int, why: str) -> None:
        self._num_left_out += 1
        if self._num_left_out in (10**power for power in range(10)):
            so_far = f" ({self._num_left_out} rows so far)" if self._num_left_out > 1 else ""
            self._notes.append(f"row {number} is left out{so_far}: {why}")

    def _records_of(self, piece: Piece) -> list[Record]:
        if piece.first_row in self._records:
            self._records.move_to_end(piece.first_row)
            return self._records[piece.first_row]
        self._make_room(piece)
        records = self._records[piece.first_row] = self._files[piece.file].file.read(piece)
        return records

    def _make_room(self, piece: Piece) -> None:
        """Drop pieces, least recently used first, until the new one fits."""
        held = [self.pieces[bisect_right(self._starts, first) - 1] for first in self._records]
        num_rows = sum(item.num_rows for item in held) + piece.num_rows
        num_bytes = sum(item.num_bytes for item in held) + piece.num_bytes
        for item in held:
            if num_rows <= self._most_rows and num_bytes <= self._most_bytes:
                return
            del self._records[item.first_row]
            num_rows, num_bytes = num_rows - item.num_rows, num_bytes - item.num_bytes
