"""The training prompts of a run, in memory or streamed, and their order: one dataset, or a mixture."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rl_compat import seeds
from rl_compat.data.encode.prompts import Overlong, PromptEncoder, build_prompts, check_batch_size
from rl_compat.data.encode.streamed import StreamedFile, StreamedPrompts
from rl_compat.data.order.batches import Keep, MixtureOrder, Order, PromptOrder
from rl_compat.data.order.epochs import BlockEpochs, Epochs, WholeEpochs
from rl_compat.data.read.reading import (
    Reading,
    SourceRows,
    check_usable,
    convert_all,
    form_of,
    is_builtin,
    load_sources,
    open_source,
)
from rl_compat.data.read.records import Records
from rl_compat.errors import DataError
from rl_compat.trajectory import Prompt
from rl_compat.units import counted

MEMORY_PER_BYTE = 12
"bytes of a row in memory, as text and as token ids, for each byte in its file"
SHARE_OF_MEMORY = 0.25
"largest share of the memory for rows; larger data is streamed"


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Prompts by index, and the range of each source among them."""

    prompts: Sequence[Prompt]
    sources: tuple[tuple[int, int], ...]
    "first index and number of rows of each source"
    weights: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def sample(self) -> Sequence[Prompt]:
        """All prompts, or the first ones of each streamed source, to check before a run."""
        return self.prompts.sample() if isinstance(self.prompts, StreamedPrompts) else self.prompts

    def order(self, batch_size: int, *, shuffle: bool, seed: int) -> Order:
        """Batches of indexes into the prompts. Raises DataError when there are too few rows."""
        check_batch_size(len(self.prompts), batch_size)
        keep: Keep = self.prompts.usable if isinstance(self.prompts, StreamedPrompts) else lambda row: True
        if self.weights:
            epochs = [
                self._epochs(place, shuffle, seeds.derive(seed, "source", index))
                for index, place in enumerate(self.sources)
            ]
            return MixtureOrder(epochs, self.weights, batch_size, shuffle=shuffle, seed=seed, keep=keep)
        whole = self._epochs((0, len(self.prompts)), shuffle, seed)
        return PromptOrder(len(self.prompts), batch_size, shuffle=shuffle, seed=seed, epochs=whole, keep=keep)

    def _epochs(self, place: tuple[int, int], shuffle: bool, seed: int) -> Epochs:
        first, count = place
        if not isinstance(self.prompts, StreamedPrompts):
            return WholeEpochs(count, shuffle=shuffle, seed=seed, first_row=first)
        pieces = [item for item in self.prompts.pieces if first <= item.first_row < first + count]
        return BlockEpochs(pieces, shuffle=shuffle, seed=seed)


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

    Of a streamed source the first piece is checked; a later row that cannot be used is left out and counted.
    Raises DataError.
    """
    limits = sample_limits(max_samples, weights)
    limit: dict[str, Any] = {"chat": chat, "max_prompt_length": max_prompt_length, "overlong": overlong}
    if streaming:
        opened, places = _open(sources, reading, limits)
        prompts: Sequence[Prompt] = StreamedPrompts(opened, **limit, num_blocks=max(1, len(weights)))
        return TrainingData(prompts=prompts, sources=tuple(places), weights=tuple(weights))
    loaded = load_sources(sources, reading, limits=limits)
    built = build_prompts([row for source in loaded for row in source.rows], **limit)
    places = _places(loaded, built.prompts)
    for source, (_, count) in zip(loaded, places, strict=True):
        if weights and not count:
            raise DataError(
                f"no row of `{source.name}` can be used, and `data.mixture_weights` gives it a share",
                hint="raise `data.max_prompt_length`, or remove the file",
            )
    return TrainingData(prompts=built.prompts, sources=tuple(places), weights=tuple(weights), notes=built.notes)


def left_out(prompts: Sequence[Prompt]) -> list[str]:
    """Notes about rows that streaming left out since the last call."""
    return prompts.take_notes() if isinstance(prompts, StreamedPrompts) else []


def should_stream(sources: Sequence[str | Records], *, memory_bytes: int) -> bool:
    """Whether the rows would take more than their share of the memory, or come from a stream of unknown length."""
    reading = Reading(task="prompts")
    size = sum(file.size_bytes() for source in sources for file in open_source(source, reading))
    return size * MEMORY_PER_BYTE > SHARE_OF_MEMORY * memory_bytes


def sample_limits(max_samples: int | None, weights: Sequence[float]) -> list[int | None] | int | None:
    """The largest number of rows of each source in a mixture, or of all together."""
    if max_samples is None or not weights:
        return max_samples
    return [max(1, round(max_samples * weight / sum(weights))) for weight in weights]


def _places(sources: Sequence[SourceRows], prompts: Sequence[Prompt]) -> list[tuple[int, int]]:
    """The first index and the number of prompts of each source; dropped rows leave no gap."""
    rows = [prompt.row for prompt in prompts]
    starts = [bisect_left(rows, source.first_row) for source in sources]
    return [(start, end - start) for start, end in pairwise([*starts, len(rows)])]


def _open(
    sources: Sequence[str | Records], reading: Reading, limits: Sequence[int | None] | int | None
) -> tuple[list[StreamedFile], list[tuple[int, int]]]:
    """Every file with its form and pieces, and the first index and number of rows of each source."""
    opened: list[StreamedFile] = []
    places: list[tuple[int, int]] = []
    start = 0
    for index, source in enumerate(sources):
        first = start
        limit = limits - start if isinstance(limits, int) else limits[index] if limits else None
        for file in open_source(source, reading, streaming=True):
            left = None if limit is None else limit - (start - first)
            if left is not None and left <= 0:
                break
            opened.append(_open_one(file, reading, number=len(opened), first_row=start, limit=left))
            start += sum(piece.num_rows for piece in opened[-1].pieces)
        if start > first:
            places.append((first, start - first))
    return opened, places


def _open_one(file: Records, reading: Reading, *, number: int, first_row: int, limit: int | None) -> StreamedFile:
    """The first piece tells the form; its rows must be usable unless `data.bad_rows=drop`."""
    pieces = tuple(file.pieces(file=number, first_row=first_row, limit=limit))
    records = file.read(pieces[0]) if pieces else []
    form = form_of(records, reading, file)
    if not is_builtin(file):
        if not file.reads_pieces:
            reading.announce(f"`{file.name}` cannot be read in pieces and is held in memory")
        reading.announce(f"{form.sentence(file.name)}; streamed in {counted(len(pieces), 'piece')}")
    if reading.bad_rows == "error":
        _, bad = convert_all(records, form, task="prompts", split=reading.split, first_row=first_row)
        check_usable(bad, num_rows=len(records), name=file.name, column=form.columns.get("prompt", "prompts"))
    return StreamedFile(file=file, form=form, pieces=pieces, split=reading.split)
