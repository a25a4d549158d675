"""Two ranks give the loss, the gradients and the weights of one process, whatever happens on one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.ranks import CASES, Found, run_on_ranks

from rl_compat.distributed.ranks import Solo
from rl_compat.training.step import LOWEST_SCALE

TOLERANCE = 1e-5
STOPPED = ("nothing fits on one rank", "infinite loss on one rank")
LOCAL_METRICS = ("num_micro_batches", "loss_scale")


@pytest.fixture(scope="module")
def found(llama_folder: Path) -> list[dict[str, Found]]:
    return run_on_ranks(llama_folder, num_ranks=2)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    assert one
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def comparable(step: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in step.items() if not name.endswith(LOCAL_METRICS)}


@pytest.mark.parametrize("case", [case for case in CASES if case not in STOPPED])
def test_two_ranks_train_as_one_process_does(case: str, found: list[dict[str, Found]], llama_folder: Path) -> None:
    alone = CASES[case](llama_folder, Solo())
    for rank in found:
        together = rank[case]
        assert len(together.steps) == len(alone.steps)
        for step, expected in zip(together.steps, alone.steps, strict=True):
            assert comparable(step) == pytest.approx(comparable(expected), rel=TOLERANCE, abs=TOLERANCE)
        assert difference(together.first_grads, alone.first_grads) < TOLERANCE
        assert difference(together.weights, alone.weights) < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_hold_the_same_weights_and_limits(case: str, found: list[dict[str, Found]]) -> None:
    one, other = (rank[case] for rank in found)
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    assert one.steps == other.steps
    assert one.extra.get("limits") == other.extra.get("limits")


def test_an_overflow_on_one_rank_lowers_the_scale_of_both(found: list[dict[str, Found]]) -> None:
    one, other = (rank["fp16 overflow on one rank"] for rank in found)
    assert one.extra["overflowed"] != other.extra["overflowed"]
    assert LOWEST_SCALE < one.steps[0]["loss_scale"] == other.steps[0]["loss_scale"] < 2.0**13
    assert [step["skipped_steps"] for step in one.steps] == [0, 0, 0]


def test_an_infinite_loss_on_one_rank_stops_both_with_its_row(found: list[dict[str, Found]]) -> None:
    one, other = (rank["infinite loss on one rank"].extra["error"] for rank in found)
    assert one == other
    assert " row 5," in one


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_both(found: list[dict[str, Found]]) -> None:
    one, other = (rank["infinite gradient on one rank"] for rank in found)
    for case in (one, other):
        assert [step["skipped_steps"] for step in case.steps] == [1, 0, 0]
        assert case.steps[0]["lr"] == case.steps[1]["lr"]
    assert one.extra["error"] == other.extra["error"]
    assert one.extra["error"].endswith(" row 5")


def test_out_of_memory_on_one_rank_repeats_the_step_on_both(found: list[dict[str, Found]]) -> None:
    one, other = (rank["out of memory on one rank"].extra for rank in found)
    assert one["limits"].max_rows == other["limits"].max_rows == 2
    assert (len(one["notes"]), len(other["notes"])) == (0, 1)


def test_where_nothing_fits_on_one_rank_both_stop_with_its_name(found: list[dict[str, Found]]) -> None:
    one, other = (rank["nothing fits on one rank"].extra["error"] for rank in found)
    assert one == other
    assert "rank 1" in one


def test_a_step_without_tokens_is_skipped_on_both(found: list[dict[str, Found]]) -> None:
    for rank in found:
        first, second = rank["nothing to learn"].steps
        assert (first["skipped_steps"], second["skipped_steps"]) == (1, 0)


def test_both_ranks_run_the_same_number_of_micro_batches(found: list[dict[str, Found]]) -> None:
    for rank in found:
        assert {step["num_micro_batches"] for step in rank["uneven micro-batches"].steps} == {3}
