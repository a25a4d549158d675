"""What a check of data finds: problems with their rows, and lengths in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

NUM_NAMED = 20
"rows that a problem lists"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProblem:
    """One kind of problem, and the rows that have it."""

    kind: str
    "stable identifier, such as `prompt-too-long`"
    what: str
    "in words"
    spoils: bool
    "the run would fail or train on something unintended; False for a note"
    num_rows: int
    rows: tuple[int, ...]
    "the first of them"
    others: tuple[int, ...] = ()
    "for each of `rows` the earlier row that it repeats"
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Numbers of tokens over the rows of a file."""

    minimum: int
    median: int
    p95: int
    maximum: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The contents of one file and its problems."""

    name: str
    split: str
    form: str
    num_rows: int
    num_usable: int
    "rows that the run would train on"
    lengths: dict[str, Lengths]
    "of prompts, and of responses or reference solutions where the rows have any"
    tokens_per_epoch: int
    "of prompts, and of responses in offline data"
    sources: dict[str, int]
    "rows by data source"
    ground_truths: tuple[str, ...]
    "of the first rows, as the reward compares them"
    end_tokens: tuple[str, ...]
    "the tokens that end a response, with their ids"
    problems: tuple[DataProblem, ...]
    "those that spoil rows first"


@dataclass(slots=True)
class Findings:
    """Collects problems row by row."""

    rows: dict[tuple[str, str, bool, str | None], list[tuple[int, int | None]]] = field(default_factory=dict)
    "the first rows of each problem, with the earlier row that one repeats"
    counts: Counter[tuple[str, str, bool, str | None]] = field(default_factory=Counter)

    def add(
        self,
        row: int,
        kind: str,
        what: str,
        *,
        spoils: bool = True,
        hint: str | None = None,
        repeats: int | None = None,
    ) -> None:
        key = (kind, what, spoils, hint)
        self.counts[key] += 1
        named = self.rows.setdefault(key, [])
        if len(named) < NUM_NAMED:
            named.append((row, repeats))

    def problems(self) -> tuple[DataProblem, ...]:
        """Problems that spoil rows first, then by the number of rows."""
        found = [
            DataProblem(
                kind=kind,
                what=what,
                spoils=spoils,
                num_rows=self.counts[kind, what, spoils, hint],
                rows=tuple(row for row, _ in named),
                others=tuple(other for _, other in named if other is not None),
                hint=hint,
            )
            for (kind, what, spoils, hint), named in self.rows.items()
        ]
        return tuple(sorted(found, key=lambda problem: (not problem.spoils, -problem.num_rows)))


def lengths_of(counts: Sequence[int]) -> Lengths:
    """Raises IndexError without a row."""
    ordered = sorted(counts)
    return Lengths(
        minimum=ordered[0],
        median=ordered[len(ordered) // 2],
        p95=ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        maximum=ordered[-1],
        total=sum(ordered),
    )
