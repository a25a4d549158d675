"""Validates the rows of a file the way a run reads them, and counts the problems."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_compat.data.check.findings import NUM_NAMED, DataProblem, FileReport, Findings, lengths_of
from rl_compat.data.check.oddities import of_text, of_turns
from rl_compat.data.encode.prompts import Overlong, PromptEncoder
from rl_compat.data.form.columns import Record
from rl_compat.data.form.conversion import CONVERTERS
from rl_compat.data.form.rows import LabelledRow, PreferenceRow, PromptRow, SupervisedRow, Text, response_messages
from rl_compat.data.form.turns import Unusable
from rl_compat.data.read.reading import Reading, open_rows
from rl_compat.data.read.records import Records
from rl_compat.errors import RLCompatError

AnyRow = PromptRow | SupervisedRow | PreferenceRow | LabelledRow
Judge = Callable[[str, Any, str | None], list[tuple[bool, str, str | None]]]
"from data source, ground truth and reference solution to problems: whether it spoils the row, what, and a hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """Limits in tokens."""

    max_prompt_length: int
    max_response_length: int
    overlong: Overlong = "filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tokenizer and the rewards of the run."""

    chat: PromptEncoder
    count_tokens: Callable[[str], int]
    begin: int | None = None
    "begin-of-text id, where the tokenizer has one"
    special: tuple[str, ...] = ()
    "special tokens as text"
    judge: Judge = lambda data_source, truth, reference: []


class FileCheck:
    """Validates the rows of one file, a piece at a time."""

    def __init__(self, file: Records, reading: Reading, limits: LengthLimits, tools: Tools) -> None:
        """Raises DataError for a file without rows or with columns of no known form."""
        self.name = file.name
        self.split = reading.split
        self.prompts: dict[int, int] = {}
        "digest of a prompt to its first row"
        self._file, self._reading, self._limits, self._tools = file, reading, limits, tools
        self._findings = Findings()
        self._whole: dict[int, tuple[int, str]] = {}
        self._lengths: dict[str, list[int]] = {}
        self._sources: Counter[str] = Counter()
        self._labels: set[bool] = set()
        self._num_usable = self._tokens = 0
        self._form, records = open_rows(file, reading)
        self.num_rows = sum(1 for _ in records)

    def run(self, on_progress: Callable[[int], None] = lambda rows: None) -> FileReport:
        """Validate every row. Raises DataError for a file that cannot be read to its end."""
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
        first = rows[0]
        self._sources[first.data_source] += 1
        tokens = self._prompt_tokens(first)
        if tokens is None:
            return
        responses = [response for row in rows for response in _responses(row)]
        lengths = [self._tools.count_tokens(_said(response)) for response in responses]
        self._lengths.setdefault("prompt", []).append(tokens)
        self._look_at_lengths(first.row, tokens, lengths)
        self._look_at_copies(first, responses)
        if isinstance(first, PromptRow):
            self._look_at_reward(first)
        elif isinstance(first, PreferenceRow) and first.chosen == first.rejected:
            self._findings.add(first.row, "same-responses", "the chosen and the rejected response are the same")
        self._labels.update(row.label for row in rows if isinstance(row, LabelledRow))

    def _prompt_tokens(self, row: AnyRow) -> int | None:
        """The length of the prompt; None when the template fails."""
        if row.prompt == "":
            return 0
        for kind, what, spoils in of_turns(row.prompt):
            self._findings.add(row.row, kind, what, spoils=spoils)
        try:
            text, token_ids = self._tools.chat.encode(row.prompt)
        except RLCompatError as error:
            self._findings.add(row.row, "template-error", error.message, hint=error.hint)
            return None
        if not token_ids:
            self._findings.add(row.row, "no-tokens", "the prompt gives no tokens")
            return None
        odd = of_text(row.prompt, text, token_ids, begin=self._tools.begin, special=self._tools.special)
        for kind, what, spoils in odd:
            self._findings.add(row.row, kind, what, spoils=spoils)
        return len(token_ids)

    def _look_at_lengths(self, row: int, prompt: int, responses: Sequence[int]) -> None:
        limits = self._limits
        if responses:
            self._lengths.setdefault("response", []).extend(responses)
        if prompt > limits.max_prompt_length:
            done = {"filter": "dropped", "error": "refused"}.get(limits.overlong, f"cut ({limits.overlong})")
            what = f"the prompt has more than {limits.max_prompt_length} tokens and would be {done}"
            self._findings.add(row, "prompt-too-long", what, hint="raise `data.max_prompt_length`")
        if any(length > limits.max_response_length for length in responses):
            what = f"a response has more than {limits.max_response_length} tokens"
            self._findings.add(row, "response-too-long", what, hint="raise `data.max_response_length`")
        if prompt <= limits.max_prompt_length or limits.overlong in ("left", "right", "middle"):
            self._num_usable += 1
            self._tokens += min(prompt, limits.max_prompt_length)
            self._tokens += sum(min(length, limits.max_response_length) for length in responses)

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
        reference = reference_of(row)
        if reference is not None:
            length = self._tools.count_tokens(reference)
            self._lengths.setdefault("reference solution", []).append(length)
            if length > self._limits.max_response_length:
                what = f"the reference solution has more than {self._limits.max_response_length} tokens"
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


def _said(response: Text) -> str:
    """The text of the assistant turns in a response."""
    messages = response_messages(response)
    return "\n".join(str(message.get("content") or "") for message in messages if message["role"] == "assistant")
