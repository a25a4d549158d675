"""An explanation as plain text: the cause, how to fix it here, then its consequences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rl_compat.doctor.explain.explanation import Advice, Explained, LogExplanation
from rl_compat.doctor.explain.matching import ErrorMatch
from rl_compat.doctor.explain.reading import Line
from rl_compat.doctor.findings import Severity
from rl_compat.doctor.fix import caution
from rl_compat.doctor.report.paper import BOLD, DIM, Paper
from rl_compat.doctor.report.screen import COLOURS

FULL = 3
"causes that are explained in full; others get one line each"
MOST_LINES = 6
"of the log, for one place"
ROWS = 3
"on the screen, for the line with the message"
MARKS = {"fault": COLOURS[Severity.FAILURE], "warning": COLOURS[Severity.WARNING]}


def render(explanation: LogExplanation, paper: Paper) -> list[str]:
    """All lines of the page."""
    blocks = [
        [paper.paint(_heading(explanation), BOLD)],
        *(_explained(explained, paper) for explained in explanation.causes[:FULL]),
        _further(explanation, paper),
        _unrecognised(explanation, paper),
        _nearest(explanation, paper),
        _collect(explanation, paper),
        _sources(explanation, paper),
    ]
    filled = [block for block in blocks if block]
    return [paper.spell(line) for block in filled for line in ("", *block)][1:]


def _heading(explanation: LogExplanation) -> str:
    lines = f"{explanation.num_lines:,} line{'s' if explanation.num_lines != 1 else ''}"
    where = f"{explanation.source}, {lines}"
    causes = explanation.causes
    if not causes:
        return f"{where}: {'no known error' if explanation.unrecognised else 'no error'}"
    first, followed = causes[0].cause, sum(len(explained.cause.consequences) for explained in causes)
    also = f", {len(causes) - 1} more below" if len(causes) > 1 else ""
    after = (
        f"; {followed} {'others are consequences' if followed > 1 else 'other is a consequence'}" if followed else ""
    )
    kind = "" if explanation.exit_code else ", not a fault"
    return f"{where}: {first.match.error.title}{kind}{also}{after}"


def _explained(explained: Explained, paper: Paper) -> list[str]:
    match, advice = explained.cause.match, explained.advice
    error = match.error
    name = error.severity
    title = f"{paper.paint(name, MARKS.get(name, DIM))}: {paper.paint(error.title, BOLD)} ({error.component})"
    sure = error.confidence in ("high", "medium-high")
    return [
        title,
        *_excerpt(match, paper),
        *paper.wrap(f"{error.cause}{'' if sure else f' (confidence of this entry: {error.confidence})'}", first="  "),
        *_here(advice, paper),
        *_remedies(advice, paper),
        *_consequences(explained, paper),
    ]


def _excerpt(match: ErrorMatch, paper: Paper) -> Iterator[str]:
    """The first place with its context, and the lines of the other places."""
    place = match.places[0]
    width = len(str(place.last + 1))
    for line in place.before:
        yield paper.paint(_numbered(line, width, " ", paper), DIM)
    yield from _whole(place.matched[0], width, paper, place.column)
    for line in place.matched[1:MOST_LINES]:
        yield _numbered(line, width, ">", paper)
    for line in place.after:
        yield paper.paint(_numbered(line, width, " ", paper), DIM)
    if match.count > 1:
        others = [str(other.first) for other in match.places[1:]]
        more = match.count - len(match.places)
        tail = f" and {more:,} more" if more else ""
        yield f"    {' ' * width}  also on line{'s' if match.count > 2 else ''} {', '.join(others)}{tail}"


def _whole(line: Line, width: int, paper: Paper, column: int) -> list[str]:
    """A line of the log in a few rows; for a longer one the part around the column."""
    room = (paper.width - width - 6) * ROWS
    start = 0 if len(line.text) <= room else max(0, column - room // 4)
    shown = line.text[start : start + room]
    text = ("…" if start else "") + " ".join(shown.split()) + ("…" if start + room < len(line.text) else "")
    rows = textwrap.wrap(text, paper.width - width - 6, break_on_hyphens=False)
    return [f"  > {line.number if not i else '':>{width}}  {row}" for i, row in enumerate(rows)]


def _numbered(line: Line, width: int, mark: str, paper: Paper) -> str:
    text = " ".join(line.text.split())
    room = paper.width - width - 6
    return f"  {mark} {line.number:>{width}}  {text if len(text) <= room else text[: room - 1] + '…'}"


def _here(advice: Advice, paper: Paper) -> Iterator[str]:
    if advice.why:
        yield from paper.wrap(f"here: {advice.why}", first="  ", rest="        ")
    for finding in advice.findings:
        name = finding.severity.name.lower()
        why = f": {finding.why}" if finding.why else ""
        lines = paper.wrap(f"here: {name}: {finding.what}{why}", first="  ", rest="        ")
        yield lines[0].replace(name, paper.paint(name, COLOURS[finding.severity]), 1)
        yield from lines[1:]
    if advice.fine and not advice.findings and advice.concerns == "yes":
        checks = ", ".join(id.replace("_", " ") for id in advice.fine)
        yield from paper.wrap(f"here: the checks found nothing ({checks})", first="  ", rest="        ")


def _remedies(advice: Advice, paper: Paper) -> Iterator[str]:
    for number, remedy in enumerate(advice.remedies):
        text = remedy.what + caution(remedy, " ({})")
        yield from paper.wrap(text, first="  or " if number else "  -> ", rest="     ")
        yield from (f"       {command}" for command in remedy.commands)


def _consequences(explained: Explained, paper: Paper) -> Iterator[str]:
    if explained.cause.consequences:
        yield "  consequences:"
    for match in explained.cause.consequences:
        yield from paper.wrap(f"line {match.first}{_times(match)}: {match.error.title}", first="    ", rest="      ")


def _further(explanation: LogExplanation, paper: Paper) -> list[str]:
    rest = [explained.cause.match for explained in explanation.causes[FULL:]]
    texts = (f"{match.error.severity}: line {match.first}{_times(match)}: {match.error.title}" for match in rest)
    return [line for text in texts for line in paper.wrap(text, rest="  ")]


def _times(match: ErrorMatch) -> str:
    return f" ({match.count:,} times)" if match.count > 1 else ""


def _unrecognised(explanation: LogExplanation, paper: Paper) -> list[str]:
    lines = explanation.unrecognised
    if not lines:
        return []
    width = len(str(lines[-1].number))
    return [
        "not recognised; the last lines that look like an error:",
        *(_numbered(line, width, ">", paper) for line in lines),
    ]


def _nearest(explanation: LogExplanation, paper: Paper) -> list[str]:
    if not explanation.nearest:
        return []
    block = ["the nearest known errors, which may be unrelated:"]
    for found in explanation.nearest:
        shared = ", ".join(found.shared[:4])
        text = f"{found.error.title}: {found.error.cause} (line {found.line.number}; in common: {shared})"
        block += paper.wrap(text, first="  ? ", rest="    ")
    return block


def _collect(explanation: LogExplanation, paper: Paper) -> list[str]:
    lines = [line for text in explanation.collect for line in paper.wrap(text, first="  -> ", rest="     ")]
    return ["to investigate, or to report it:", *lines] if lines else []


def _sources(explanation: LogExplanation, paper: Paper) -> list[str]:
    shown = [explained.cause.match.error for explained in explanation.causes[:FULL]]
    texts = (f"sources, {error.id}, {error.date}: {'; '.join(error.sources)}" for error in shown)
    return [paper.paint(line, DIM) for text in texts for line in paper.wrap(text, rest="  ")]
