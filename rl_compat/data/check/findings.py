"""What a check of data found: problems with their rows, and lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

NUM_NAMED = 20
"rows that a problem names"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProblem:
    """One thing that is wrong, and the rows that have it."""

    what: str
    spoils: bool
    "the run would fail, or train on something else than is meant"
    num_rows: int
    rows: tuple[int, ...]
    "the first of them"
    others: tuple[int, ...] = ()
    "for each of these the earlier row that it repeats"
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Of tokens, over rows."""

    minimum: int
    median: int
    p95: int
    maximum: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What one file holds and what is wrong with it."""

    name: str
    split: str
    form: str
    num_rows: int
    num_usable: int
    "rows that the run would train on"
    lengths: dict[str, Lengths]
    "of prompts, and of responses or reference solutions where there are any"
    tokens_per_epoch: int
    "of prompts, and of responses that are given"
    sources: dict[str, int]
    "rows by data source"
    problems: tuple[DataProblem, ...]
    "worst first"


@dataclass(slots=True)
class Findings:
    """Problems as they are met, by what is said of them."""

    rows: dict[tuple[bool, str, str | None], list[tuple[int, int | None]]] = field(default_factory=dict)
    "the first rows of each, and the earlier row that one repeats"
    counts: Counter[tuple[bool, str, str | None]] = field(default_factory=Counter)

    def add(
        self, row: int, what: str, *, spoils: bool = True, hint: str | None = None, repeats: int | None = None
    ) -> None:
        key = (spoils, what, hint)
        self.counts[key] += 1
        named = self.rows.setdefault(key, [])
        if len(named) < NUM_NAMED:
            named.append((row, repeats))

    def problems(self) -> tuple[DataProblem, ...]:
        """Those that spoil rows first, then those of most rows."""
        found = [
            DataProblem(
                what=what,
                spoils=spoils,
                num_rows=self.counts[spoils, what, hint],
                rows=tuple(row for row, _ in named),
                others=tuple(other for _, other in named if other is not None),
                hint=hint,
            )
            for (spoils, what, hint), named in self.rows.items()
        ]
        return tuple(sorted(found, key=lambda problem: (not problem.spoils, -problem.num_rows)))


def lengths_of(counts: Sequence[int]) -> Lengths:
    """Of at least one row."""
    ordered = sorted(counts)
    return Lengths(
        minimum=ordered[0],
        median=ordered[len(ordered) // 2],
        p95=ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        maximum=ordered[-1],
        total=sum(ordered),
    )
