"""Draws follow each other in the order of the rows, and every position knows what is left."""

from __future__ import annotations

from rl_compat.data.order.batches import PromptOrder
from rl_compat.trainer.draws import Position, Rows, parts_of


def rows_at(position: Position | None = None) -> Rows:
    order = PromptOrder(12, 3, shuffle=False, seed=0)
    rows = Rows(order)
    if position is not None:
        order.load_state_dict(position.order)
        rows.pending, rows.num_draws = list(position.pending), position.num_draws
    return rows


def test_rows_left_over_from_a_batch_come_first_the_next_time() -> None:
    rows = rows_at()
    assert [rows.take(2), rows.take(2)] == [[0, 1], [2, 3]]
    assert rows.pending == [4, 5]
    assert rows_at(rows.position).take(4) == [4, 5, 6, 7]


def test_a_run_goes_on_after_any_part_of_a_draw_with_the_rows_that_nobody_used() -> None:
    rows = rows_at()
    rows.draw(1)
    draw = rows.draw(3)
    assert (draw.number, draw.rows) == (2, [1, 2, 3])
    parts = parts_of(draw, [("a", 0.2), ("b", 0.3), ("c", 0.4)], draw.position)
    assert [part.sampled for part in parts] == ["a", "b", "c"]
    for used, part in enumerate(parts, start=2):
        resumed = rows_at(part.position).draw(12 - used)
        assert (resumed.number, resumed.rows) == (3, list(range(used, 12)))
    (whole,) = parts_of(draw, [("all", 1.0)], draw.position)
    assert whole.position == draw.position
