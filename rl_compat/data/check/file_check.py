"""Validates the rows of a file the way a run reads them, and counts the problems."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_compat.data.check.findings import NUM_NAMED, DataProblem, FileReport, Findings, lengths_of
from rl_compat.data.check.oddities import of_fields, of_text, of_turns
from rl_compat.data.encode.items import Encoding, ItemEncoder
from rl_compat.data.encode.prompts import EncodingError, Render, encode_row
from rl_compat.data.form.columns import Record
from rl_compat.data.form.conversion import CONVERTERS
from rl_compat.data.form.patterns import Form
from rl_compat.data.form.rows import (
    LabelledRow,
    PreferenceRow,
    PromptRow,
    SupervisedRow,
    Text,
    prompt_messages,
    response_messages,
)
from rl_compat.data.form.turns import Unusable
from rl_compat.data.read.reading import Reading
from rl_compat.data.read.records import Records

NUM_SHOWN_TRUTHS = 3
AnyRow = PromptRow | SupervisedRow | PreferenceRow | LabelledRow
Judge = Callable[[str, Any, str | None], list[tuple[bool, str, str | None]]]
"from data source, ground truth and reference solution to problems: whether it spoils the row, what, and a hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The encoding and the rewards of the run."""

    encoding: Encoding
    encoder: ItemEncoder | None = None
    "of rows with responses; None for prompts"
    count_tokens: Callable[[str], int]
    begin: int | None = None
    "begin-of-text id, where the tokenizer has one"
    special: tuple[str, ...] = ()
    "special tokens as text"
    end: tuple[str, ...] = ()
    "the tokens that end a response, as text with their ids"
    judge: Judge = lambda data_source, truth, reference: []
    gold: Callable[[str, Any], str] = lambda data_source, truth: str(truth)
    "what the reward compares an answer with"


class FileCheck:
    """Validates the rows of one file, a piece at a time."""

    def __init__(self, file: Records, reading: Reading, form: Form, tools: Tools) -> None:
        """Raises DataError for a file that cannot be read to its end."""
        self.name = file.name
        self.split = reading.split
        self.prompts: dict[int, int] = {}
        "digest of a prompt to its first row"
        self._file, self._reading, self._tools = file, reading, tools
        self._findings = Findings()
        self._whole: dict[int, tuple[int, str]] = {}
        self._lengths: dict[str, list[int]] = {}
        self._sources: Counter[str] = Counter()
        self._labels: set[bool] = set()
        self._truths: list[str] = []
        self._num_usable = self._tokens = 0
        self._form = form
        self.num_rows = sum(1 for _ in file.read())

    def run(self, on_progress: Callable[[int], None] = lambda rows: None) -> FileReport:
        """Validate every row."""
        for row, record in enumerate(self._file.read()):
            self._look_at(record, row)
            on_progress(1)
        self._look_at_labels()
        return FileReport(
            name=self.name,
            split=self.split,
            form=self._form.sentence(self.name),
            num_rows=self.num_rows,
            num_usable=self._num_usable,
            lengths={name: lengths_of(counts) for name, counts in self._lengths.items()},
            tokens_per_epoch=self._tokens,
            sources=dict(self._sources.most_common()),
            ground_truths=tuple(self._truths),
            end_tokens=self._tools.end,
            problems=self._findings.problems(),
        )

    def _look_at(self, record: Record, row: int) -> None:
        convert = CONVERTERS[self._reading.task]
        try:
            found = convert(record, self._form, row=row, index=row, split=self._reading.split)
        except Unusable as error:
            self._findings.add(row, "unusable", f"cannot be used: {error}", hint=_LEAVE_OUT)
            return
        self._look_at_row(found if isinstance(found, list) else [found])

    def _look_at_row(self, rows: Sequence[AnyRow]) -> None:
        """`rows` are the two labelled rows of a pair, or one row."""
        first = rows[0]
        self._sources[first.data_source] += 1
        for kind, what, spoils in of_turns(first.prompt):
            self._findings.add(first.row, kind, what, spoils=spoils)
        try:
            kept = [self._measured(row) for row in rows]
        except EncodingError as error:
            self._findings.add(first.row, error.kind, error.message, hint=error.hint or _LEAVE_OUT)
            return
        self._num_usable += any(kept)
        self._tokens += sum(kept)
        self._look_at_text(first)
        self._look_at_copies(first, [response for row in rows for response in _responses(row)])
        if isinstance(first, PromptRow):
            self._look_at_reward(first)
        elif isinstance(first, PreferenceRow) and first.chosen == first.rejected:
            self._findings.add(first.row, "same-responses", "the chosen and the rejected response are the same")
        self._labels.update(row.label for row in rows if isinstance(row, LabelledRow))

    def _measured(self, row: AnyRow) -> int:
        """The tokens that the run trains on, 0 for a row that it drops. Raises EncodingError."""
        encoding, encoder = self._tools.encoding, self._tools.encoder
        limit, overlong = encoding.max_prompt_length, encoding.overlong
        if isinstance(row, PromptRow):
            prompt, length = encode_row(row, chat=encoding.chat, max_prompt_length=limit, overlong=overlong)
            self._note_lengths(row.row, [("prompt", length, limit)])
            return 0 if prompt is None else len(prompt.token_ids)
        assert encoder is not None
        items = encoder.items(row)
        self._note_lengths(row.row, [part for item in items for part in encoder.lengths(item)])
        kept = [fitted for item in items if (fitted := encoder.within_limits(item)) is not None]
        return sum(len(example) for item in kept for example in item.examples)

    def _note_lengths(self, row: int, parts: Sequence[tuple[str, int, int]]) -> None:
        done = {"filter": "dropped", "error": "refused"}.get(self._tools.encoding.overlong, "cut")
        for what, length, _ in parts:
            self._lengths.setdefault(what, []).append(length)
        for what, limit in {(what, limit): None for what, length, limit in parts if length > limit}:
            keys = [
                f"data.max_{key}_length"
                for key in ("prompt", "response")
                if what not in ("prompt", "response") or key == what
            ]
            self._findings.add(
                row,
                f"{what}-too-long",
                f"the {what} has more than {limit} tokens and would be {done}",
                hint=f"raise {' or '.join(f'`{key}`' for key in keys)}",
            )

    def _look_at_text(self, row: AnyRow) -> None:
        """Oddities of the text that the template makes of the row."""
        opens = isinstance(row, PromptRow)
        chat = self._tools.encoding.chat
        render: Render = lambda turns, tools: chat.render(turns, opens_response=opens, tools=tools)  # noqa: E731
        before = prompt_messages(row.prompt)
        conversations = [[*before, *response_messages(response)] for response in _responses(row)] or [before]
        for kind, what, spoils in {odd: 0 for turns in conversations for odd in of_fields(turns, render, row.tools)}:
            self._findings.add(row.row, kind, what, spoils=spoils)
        if row.prompt == "":
            return
        text, token_ids = chat.encode(row.prompt, row.tools)
        odd = of_text(row.prompt, text, token_ids, begin=self._tools.begin, special=self._tools.special)
        for kind, what, spoils in odd:
            self._findings.add(row.row, kind, what, spoils=spoils)

    def _look_at_copies(self, row: AnyRow, responses: Sequence[Text]) -> None:
        prompt = digest(row.prompt if row.prompt != "" else responses[0])
        self.prompts.setdefault(prompt, row.row)
        truth = json.dumps(row.ground_truth, sort_keys=True, default=str) if isinstance(row, PromptRow) else ""
        whole = digest([row.prompt, *responses])
        before, other = self._whole.setdefault(whole, (row.row, truth))
        if before == row.row:
            return
        if truth != other:
            what = "the prompt of an earlier row with a different ground truth"
            self._findings.add(row.row, "contradiction", what, repeats=before)
        else:
            self._findings.add(row.row, "copy", "a copy of an earlier row", spoils=False, repeats=before)

    def _look_at_reward(self, row: PromptRow) -> None:
        if len(self._truths) < NUM_SHOWN_TRUTHS:
            self._truths.append(self._tools.gold(row.data_source, row.ground_truth))
        reference = reference_of(row)
        if reference is not None:
            length = self._tools.count_tokens(reference)
            self._lengths.setdefault("reference solution", []).append(length)
            if length > self._tools.encoding.max_response_length:
                what = f"the reference solution has more than {self._tools.encoding.max_response_length} tokens"
                hint = "raise `data.max_response_length`"
                self._findings.add(row.row, "reference-too-long", what, spoils=False, hint=hint)
        for spoils, what, advice in self._tools.judge(row.data_source, row.ground_truth, reference):
            self._findings.add(row.row, "reward", what, spoils=spoils, hint=advice)

    def _look_at_labels(self) -> None:
        if self._reading.task == "labelled" and len(self._labels) == 1:
            only = "good" if True in self._labels else "bad"
            self._findings.add(0, "one-label", f"the label of every response is {only}: there is nothing to compare")


_LEAVE_OUT = "fix the rows, or leave them out with `data.bad_rows=drop`"


def overlap(first: FileCheck, second: FileCheck) -> DataProblem | None:
    """Prompts of the second file that are also in the first one."""
    shared = [row for prompt, row in second.prompts.items() if prompt in first.prompts]
    if not shared:
        return None
    return DataProblem(
        kind="overlap",
        what=f"prompts of `{second.name}` are also in `{first.name}`",
        spoils=True,
        num_rows=len(shared),
        rows=tuple(sorted(shared)[:NUM_NAMED]),
        hint="remove them from one of the files: results on training rows are not held-out results",
    )


def reference_of(row: PromptRow) -> str | None:
    """The worked solution of a row, where it has one besides the ground truth."""
    for key in ("answer", "solution"):
        text = row.extra_info.get(key)
        if isinstance(text, str) and text.strip() and text.strip() != str(row.ground_truth).strip():
            return text
    return None


def digest(value: Any) -> int:
    """A 64-bit hash that ignores white space."""
    text = json.dumps(_squeezed(value), sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _squeezed(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: _squeezed(item) for key, item in value.items()}
    return [_squeezed(item) for item in value] if isinstance(value, list) else value


def _responses(row: AnyRow) -> list[Text]:
    if isinstance(row, PromptRow):
        return []
    return [row.chosen, row.rejected] if isinstance(row, PreferenceRow) else [row.response]
