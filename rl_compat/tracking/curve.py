"""A curve drawn with characters, printed at the end of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:#"

LABEL_WIDTH = 9
_AXIS_LINES = 2


def marks_for(encoding: str | None) -> str:
    """Eighths of a block if the encoding has them, else ASCII."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def render_curve(
    values: Sequence[float], width: int, height: int, *, first_step: int = 1, marks: str = BLOCKS
) -> list[str]:
    """Draw the values over their steps, in at most `width` columns and exactly `height` lines.

    The scale is from the lowest to the highest value shown, with both written at the side. If there are more values
    than columns, neighbours are averaged; NaN and infinities leave a gap. Without finite values, one line says so.
    """
    columns = _columns(values, max(1, width - LABEL_WIDTH - 2))
    shown = [value for value in columns if not math.isnan(value)]
    if not shown:
        return ["no values"]
    low, high = min(shown), max(shown)
    num_rows = max(1, height - _AXIS_LINES)
    levels = [_level(value, low, high, num_rows * len(marks)) for value in columns]
    rows = []
    for row in range(num_rows):
        label = _label(row, num_rows, low, high)
        base = (num_rows - 1 - row) * len(marks)
        drawn = "".join((" " + marks)[min(max(level - base, 0), len(marks))] for level in levels)
        rows.append(f"{label:>{LABEL_WIDTH}} |{drawn}".rstrip())
    axis = f"{'':{LABEL_WIDTH}} +{'-' * len(columns)}"
    return [*rows, axis, _step_labels(first_step, first_step + len(values) - 1, len(columns))]


def _columns(values: Sequence[float], most: int) -> list[float]:
    """One value per column: repeated to fill the width, or averaged over neighbours; NaN without a finite value."""
    count = len(values)
    width = most if count > most else most // max(1, count) * count
    starts = [column * count // width for column in range(width)]
    parts = (values[start : max(start + 1, end)] for start, end in pairwise([*starts, count]))
    finite = ([value for value in part if math.isfinite(value)] for part in parts)
    return [sum(part) / len(part) if part else math.nan for part in finite]


def _level(value: float, low: float, high: float, num_levels: int) -> int:
    """The height of a column in marks: 1 for the lowest value, all for the highest, half if all are equal."""
    if math.isnan(value):
        return 0
    if high == low:
        return (num_levels + 1) // 2
    return 1 + round((value - low) / (high - low) * (num_levels - 1))


def _label(row: int, num_rows: int, low: float, high: float) -> str:
    if low == high:
        return f"{low:.3g}" if row == num_rows // 2 else ""
    return f"{high:.3g}" if row == 0 else f"{low:.3g}" if row == num_rows - 1 else ""


def _step_labels(first: int, last: int, num_columns: int) -> str:
    left, right = str(first), str(last) if last > first else ""
    gap = max(1, num_columns - len(left) - len(right))
    return f"{'':{LABEL_WIDTH}}  {left}{' ' * gap}{right}".rstrip()
