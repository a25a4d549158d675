from __future__ import annotations

import math

import pytest

from rl_compat.tracking.curve import ASCII, BLOCKS, LABEL_WIDTH, marks_for, render_curve

PLOT = LABEL_WIDTH + 2


def column_heights(lines: list[str], marks: str = BLOCKS) -> list[int]:
    rows = [line[PLOT:] for line in lines[:-2]]
    width = len(lines[-2]) - PLOT
    return [sum((" " + marks).index(row.ljust(width)[column]) for row in rows) for column in range(width)]


def test_a_rising_curve_looks_like_one():
    assert render_curve([0, 0.25, 0.5, 0.75, 1.0], PLOT + 5, 6, marks=ASCII) == [
        "        1 |    #",
        "          |  .##",
        "          | .###",
        "        0 |.####",
        "          +-----",
        "           1   5",
    ]


@pytest.mark.parametrize("num_values", [1, 2, 3, 10, 52, 53, 54, 200, 10_000])
@pytest.mark.parametrize(("width", "height"), [(64, 10), (30, 5), (12, 3)])
def test_the_picture_keeps_to_its_size(num_values, width, height):
    lines = render_curve([math.sin(i / 9) * 1e-5 for i in range(num_values)], width, height)

    assert len(lines) == height
    assert max(len(line) for line in lines[:-1]) <= width
    assert column_heights(lines) and min(column_heights(lines)) >= 1


def test_heights_follow_the_values_and_use_the_whole_scale():
    lines = render_curve([0.0, 3.0, 1.0, 2.0], PLOT + 4, 6)

    assert column_heights(lines) == [1, 32, 11, 22]


def test_more_values_than_columns_are_averaged():
    lines = render_curve([0, 2, 4, 6, 8, 10], PLOT + 3, 4)

    assert (lines[0].split()[0], lines[1].split()[0]) == ("9", "1")
    assert column_heights(lines) == [1, 9, 16]


@pytest.mark.parametrize("values", [[0.5], [0.5] * 7, [0.5] * 500])
def test_equal_values_are_a_level_line_at_half_height(values):
    lines = render_curve(values, 40, 8)

    assert set(column_heights(lines)) == {24}
    assert [line.split()[0] for line in lines[:-2] if not line.lstrip().startswith("|")] == ["0.5"]


def test_the_steps_are_written_below():
    assert render_curve([1.0] * 20, 40, 5, first_step=11)[-1].split() == ["11", "30"]
    assert render_curve([1.0], 40, 5)[-1].split() == ["1"]


def test_values_that_are_not_finite_leave_a_gap():
    lines = render_curve([0.0, math.nan, math.inf, 1.0], PLOT + 4, 4)

    assert column_heights(lines) == [1, 0, 0, 16]


@pytest.mark.parametrize("values", [[], [math.nan], [math.nan, math.inf]])
def test_nothing_to_draw_is_said(values):
    assert render_curve(values, 40, 8) == ["no values"]


def test_a_picture_too_small_for_anything_is_still_one():
    assert len(render_curve([1.0, 2.0, 3.0], 1, 1)) == 3


@pytest.mark.parametrize(
    ("encoding", "marks"), [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII)]
)
def test_marks_are_what_the_terminal_can_show(encoding, marks):
    assert marks_for(encoding) == marks
