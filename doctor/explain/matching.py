"""Finding the known errors in a log, even if lines are wrapped, prefixed or coloured."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from rl_compat.doctor.explain.patterns import KnownError, Pattern
from rl_compat.doctor.explain.reading import Line

SHOWN_PLACES = 3
"places of one error that are kept; others are only counted"
LINES_BEFORE, LINES_AFTER = 2, 1
WRAPPED_LINES = 3
"over which a message may be wrapped"
CARRIED_CHARACTERS = 2000
"of a block, searched again together with the next one; longer than any message"
KEPT_SUSPECTS = 40

PREFIX = re.compile(
    r"""(?:
      \s+
    | [│┃|>❱╭╰═─]+
    | \((?:\w[\w.:\- ]{0,60}\b)?pid=\d{1,9}[^)]{0,60}\) # Ray and vLLM
    | \((?:raylet|autoscaler|driver)[^)]{0,60}\)
    | \[(?:rank|default)\d{1,5}\]:?                   # torchrun
    | \[\d{1,4}\]:?(?=[\s\[])(?!\s+[+\-\d]+\s+[\dk])  # NCCL, but no job of a shell
    | \[\d{1,4},\d{1,4}\]<std(?:out|err)>:           # mpirun
    | \d{1,5}:\ (?=\S)                              # srun --label
    | \[pod/[\w./\-]{1,160}\]                       # kubectl logs --prefix
    | [\w.\-]{1,60}[\-_]\d{1,4}\ {1,20}\|             # docker compose
    | \[?\d{4}[-/]\d\d[-/]\d\d[T ,]?                  # dates and times
    | \d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\]?
    | (?:INFO|WARNING|ERROR|DEBUG|CRITICAL|WARN|FATAL)\b[: ]?\s*(?:\d\d-\d\d)?
    | \[[\w./<>\-]{1,60}\.(?:py|cpp|cc|h|cu)[:\d]{0,8}\]?
    | [A-Z][a-z]{2}\ +\d{1,2}\ (?=\d\d:\d\d:\d\d)     # syslog
    | \[\s*\d{1,7}\.\d{6}\]                           # the kernel
    | E\ {2,8}                                        # pytest
    ){1,12}""",
    re.VERBOSE,
)
ERROR_WORD = re.compile(
    "error|exception|interrupt|fatal|critical|panic|abort|assert|killed|dumped|fault|failed|code|status", re.IGNORECASE
)
"every line that SUSPECT matches contains one of them"
SUSPECT = re.compile(
    r"\b[A-Za-z][\w.]{0,80}(?:Error|Exception|Interrupt)\b(?:: |:?$| \()"
    r"|^\W{0,8}(?:fatal|error|critical|panic|killed|abort(?:ed)?)\b"
    r"|^\W{0,8}(?:Error|Fatal|Killed|Aborted?)\b(?: error)?(?::|$)"
    r"|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|\b(?:fatal|fatal error|ptxas error)\s{0,4}: |core dumped|[Ss]egmentation fault"
    r"|Assertion .{0,200}failed|(?:exit|return)\s?(?:code|status)[: ]{0,2}-?[1-9]|failed with\b"
)
NO_ERROR = re.compile(
    r"\b(?:0|no) (?:errors?|failed|failures?)\b|ERROR_HANDLING|^\W{0,8}(?:except|raise|import|from|catch)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a message is: the lines it spans, and a few around it."""

    first: int
    last: int
    column: int
    "where the message starts in the first line"
    matched: tuple[Line, ...]
    before: tuple[Line, ...]
    after: tuple[Line, ...]


@dataclass(slots=True)
class ErrorMatch:
    """An error in the log, and where it is."""

    error: KnownError
    places: list[Place] = field(default_factory=list)
    count: int = 0
    "lines on which it starts"
    numbers: set[int] = field(default_factory=set)
    "of the lines of the kept places"
    last: int = 0
    "the last line on which it starts"

    @property
    def first(self) -> int:
        return self.places[0].first


@dataclass(slots=True)
class LogErrors:
    """The errors in a log."""

    matches: list[ErrorMatch] = field(default_factory=list)
    "in the order in which they first occur"
    num_lines: int = 0
    suspects: deque[Line] = field(default_factory=lambda: deque(maxlen=KEPT_SUSPECTS))
    "the last lines that look like an error, whether known or not"


def find_errors(blocks: Iterable[Sequence[Line]], errors: Sequence[KnownError]) -> LogErrors:
    """Every known error in the lines, which must be in order. Memory is bounded for a log of any size."""
    found = LogErrors()
    matches: dict[str, ErrorMatch] = {}
    carried: list[Line] = []
    for block in blocks:
        text = _Text([*carried, *block], new_from=len(carried))
        for error in errors:
            _search(text, error, matches)
        if ERROR_WORD.search(text.lower):
            found.suspects.extend(line for line in block if looks_like_an_error(line.text))
        found.num_lines = block[-1].number
        carried = text.tail()
    found.matches = sorted(_without_general(matches), key=lambda match: match.first)
    return found


def looks_like_an_error(text: str) -> bool:
    clipped = text[:2000]
    return bool(ERROR_WORD.search(clipped) and SUSPECT.search(clipped)) and NO_ERROR.search(clipped) is None


def without_prefix(text: str) -> str:
    """A line without timestamp, process name and frame, which would interrupt a wrapped message."""
    found = PREFIX.match(text)
    return text[found.end() :] if found else text


class _Text:
    """Lines as one text without white space, with the mapping back to the lines."""

    def __init__(self, lines: list[Line], new_from: int) -> None:
        self.lines = lines
        squeezed = ["".join(without_prefix(line.text).rstrip(" │┃|").split()) for line in lines]
        self.ends = list(accumulate(map(len, squeezed)))
        self.text = "".join(squeezed)
        self.lower = self.text.lower()
        self.old = self.ends[new_from - 1] if new_from else 0
        "characters already searched with the previous block"

    def place(self, start: int, end: int) -> Place:
        first, last = self.line_at(start), self.line_at(end - 1)
        line = self.lines[first]
        before = self.lines[max(0, first - LINES_BEFORE) : first]
        after = self.lines[last + 1 : last + 1 + LINES_AFTER]
        return Place(
            first=line.number,
            last=self.lines[last].number,
            column=_column(line.text, start - (self.ends[first - 1] if first else 0)),
            matched=tuple(self.lines[first : last + 1]),
            before=tuple(other for other in before if other.number < line.number),
            after=tuple(other for other in after if other.number > self.lines[last].number),
        )

    def line_at(self, position: int) -> int:
        return bisect_right(self.ends, position)

    def tail(self) -> list[Line]:
        """The last lines, which may contain the start of a message."""
        return self.lines[self.line_at(max(0, len(self.text) - CARRIED_CHARACTERS)) :]


def _column(text: str, squeezed: int) -> int:
    """The position in a line of the character at position `squeezed` without prefix and white space."""
    bare = without_prefix(text)
    written = [position for position, character in enumerate(bare) if not character.isspace()]
    return len(text) - len(bare) + (written[squeezed] if squeezed < len(written) else 0)


def _search(text: _Text, error: KnownError, matches: dict[str, ErrorMatch]) -> None:
    spans = sorted(span for pattern in error.patterns for span in _spans(text, pattern))
    for start, end in spans:
        match = matches.setdefault(error.id, ErrorMatch(error))
        number = text.lines[text.line_at(start)].number
        if number == match.last:
            continue
        match.count += 1
        match.last = number
        if len(match.places) < SHOWN_PLACES:
            place = text.place(start, end)
            match.places.append(place)
            match.numbers.update(range(place.first, place.last + 1))


def _spans(text: _Text, pattern: Pattern) -> list[tuple[int, int]]:
    if pattern.literal not in text.lower:
        return []
    if not pattern.whole_line:
        return [found.span() for found in pattern.regex.finditer(text.text) if found.end() > text.old]
    lines = [line for line in pairwise((0, *text.ends)) if line[1] > text.old]
    return [line for line in lines if pattern.regex.fullmatch(text.text, *line)]


def _without_general(matches: dict[str, ErrorMatch]) -> list[ErrorMatch]:
    """The matches except general ones on or next to the lines of a more specific error that covers them."""
    covered: dict[str, set[int]] = {}
    for match in matches.values():
        near = {number + step for number in match.numbers for step in range(-WRAPPED_LINES, WRAPPED_LINES + 1)}
        for general in match.error.covers:
            covered.setdefault(general, set()).update(near)
    return [match for match in matches.values() if not match.numbers <= covered.get(match.error.id, set())]
