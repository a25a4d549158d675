"""Several ranks give the loss, the gradients and the weights of one process, whatever happens on one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch
from fakes.ranks import CASES, Found, Run, assert_equal, run_on_ranks
from safetensors.torch import load_file

from rl_compat.distributed.ranks import Solo
from rl_compat.planning.types import KeptWhole
from rl_compat.training.step import LOWEST_SCALE

ONLY_SHARDED = (
    *("states on the host", "adapters", "frozen models", "resumed by one process"),
    *("out of memory in backward on one rank", "kept whole: weights", "kept whole: all"),
)
ONLY_SLOW = (
    *("out of memory in a layer of one rank", "out of memory at the end of backward on one rank"),
    *(
        "adapters on a bf16 base",
        "resumed",
        "resumed from one process",
        "resumed with adapters",
        "families",
        "handover",
    ),
    *("out of memory between two sums", "out of memory between two sums in backward"),
)
WHOLE = [(1, case) for case in CASES if case not in (*ONLY_SHARDED, *ONLY_SLOW)]
SHARDED = [
    (2, case)
    for case in (
        *(
            "ppo actor, ragged groups",
            "grpo, a rank without rows",
            "grpo, one row",
            "reward model",
            "infinite loss on one rank",
        ),
        *("infinite gradient on one rank", "nothing to learn", "uneven micro-batches", "fp16 overflow on one rank"),
        *("token mean", "token mean, a row at a time", "sequence mean", "nothing fits on one rank", *ONLY_SHARDED),
        "kept whole: none",
    )
]
STOPPED = ("nothing fits on one rank", "infinite loss on one rank")
ROUNDED = ("fp16 overflow on one rank",)
"layers of shards round the weights of norms to fp16 as well"
both = pytest.mark.parametrize("num_shards", [1, 2])


Together = list[dict[Run, Found]]


@pytest.fixture(scope="module")
def found(llama_folder: Path) -> Together:
    """What each of two ranks found, with whole copies of the weights and with shards."""
    return run_on_ranks(llama_folder, num_ranks=2, runs=[*WHOLE, *SHARDED])


@pytest.fixture(scope="module")
def llama_bytes(llama_folder: Path) -> int:
    """Of all gradients."""
    return 4 * sum(tensor.numel() for tensor in load_file(llama_folder / "model.safetensors").values())


@pytest.fixture(scope="module")
def alone(llama_folder: Path) -> Callable[[str], Found]:
    return cache(lambda case: CASES[case](llama_folder, Solo()))


@pytest.mark.parametrize(
    "run", [run for run in WHOLE + SHARDED if run[1] not in STOPPED and (run[0] == 1 or run[1] not in ROUNDED)]
)
def test_two_ranks_train_as_one_process_does(run: Run, found: Together, alone: Callable[[str], Found]) -> None:
    for rank in found:
        assert_equal(rank[run], alone(run[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "num_shards"), [(2, 1), (2, 2), (4, 2), (4, 4), (3, 3)])
def test_any_ranks_with_any_shards_train_as_one_process_does(
    num_ranks: int, num_shards: int, llama_folder: Path, alone: Callable[[str], Found]
) -> None:
    """DIST-02, DIST-03 (three rows, one row and none) and CKPTD-03 among them.

    On four ranks some have no rows, or no part of a small weight.
    """
    cases = [case for case in CASES if case not in (*STOPPED, *ROUNDED)]
    runs = [(num_shards, case) for case in cases]
    for rank in run_on_ranks(llama_folder, num_ranks=num_ranks, runs=runs):
        for case in cases:
            assert_equal(rank[num_shards, case], alone(case))
        kept = [rank[num_shards, f"kept whole: {kept}"].extra["exchanges"].counts for kept in get_args(KeptWhole)]
        assert len({counts["allreduce_"] for counts in kept}) == 1  # replicas exchange once for all micro-batches


@pytest.mark.parametrize("run", WHOLE + SHARDED)
def test_all_ranks_hold_the_same_weights_and_limits(run: Run, found: Together) -> None:
    one, other = (rank[run] for rank in found)
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    assert one.steps == other.steps
    assert one.extra.get("limits") == other.extra.get("limits")


@both
def test_an_overflow_on_one_rank_lowers_the_scale_of_both(num_shards: int, found: Together) -> None:
    one, other = (rank[num_shards, "fp16 overflow on one rank"] for rank in found)
    assert one.extra["overflowed"] != other.extra["overflowed"]
    assert LOWEST_SCALE < one.steps[0]["loss_scale"] == other.steps[0]["loss_scale"] < 2.0**13
    assert [step["skipped_steps"] for step in one.steps] == [0, 0, 0]


@both
def test_an_infinite_loss_on_one_rank_stops_both_with_its_row(num_shards: int, found: Together) -> None:
    one, other = (rank[num_shards, "infinite loss on one rank"].extra["error"] for rank in found)
    assert one == other
    assert " row 5," in one


@both
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_both(num_shards: int, found: Together) -> None:
    one, other = (rank[num_shards, "infinite gradient on one rank"] for rank in found)
    for case in (one, other):
        assert [step["skipped_steps"] for step in case.steps] == [1, 0, 0]
        assert case.steps[0]["lr"] == case.steps[1]["lr"]
    assert one.extra["error"] == other.extra["error"]
    assert one.extra["error"].endswith(" row 5")


@both
def test_out_of_memory_on_one_rank_repeats_the_step_on_both(num_shards: int, found: Together) -> None:
    where = "on one rank" if num_shards == 1 else "in backward on one rank"
    one, other = (rank[num_shards, f"out of memory {where}"].extra for rank in found)
    assert one["limits"].max_rows == other["limits"].max_rows == 2
    assert (len(one["notes"]), len(other["notes"])) == (0, 1)


@both
def test_where_nothing_fits_on_one_rank_both_stop_with_its_name(num_shards: int, found: Together) -> None:
    one, other = (rank[num_shards, "nothing fits on one rank"].extra["error"] for rank in found)
    assert one == other
    assert "rank 1" in one


@both
def test_a_step_without_tokens_is_skipped_on_both(num_shards: int, found: Together) -> None:
    """DIST-03"""
    for rank in found:
        first, second = rank[num_shards, "nothing to learn"].steps
        assert (first["skipped_steps"], second["skipped_steps"]) == (1, 0)


@both
def test_both_ranks_run_the_same_number_of_micro_batches(num_shards: int, found: Together) -> None:
    """DIST-02"""
    for rank in found:
        assert {step["num_micro_batches"] for step in rank[num_shards, "uneven micro-batches"].steps} == {3}


@pytest.mark.parametrize(
    ("kept", "gathers", "exchanges"), [("none", 6 * (2 * 2 + 1), 6), ("weights", 2 + 1, 6), ("all", 2 + 1, 1)]
)
def test_what_is_kept_whole_is_exchanged_once_for_all_micro_batches(
    kept: str, gathers: int, exchanges: int, found: Together, llama_bytes: int
) -> None:
    """Six micro-batches of a model of two layers, which are gathered forward and backward, and a root."""
    for rank in found:
        counted = rank[2, f"kept whole: {kept}"].extra["exchanges"]
        assert counted.counts["_allgather_base_"] == gathers
        assert counted.counts["_reduce_scatter_base_"] == exchanges * (2 + 1)
        assert counted.num_bytes["_reduce_scatter_base_"] == pytest.approx(exchanges * llama_bytes, rel=0.01)


def test_whole_copies_exchange_their_gradients_once_for_all_micro_batches(found: Together, llama_bytes: int) -> None:
    for rank in found:
        counted = rank[1, "kept whole: none"].extra["exchanges"]
        assert counted.counts["_reduce_scatter_base_"] == 0
        assert counted.num_bytes["allreduce_"] == pytest.approx(llama_bytes, rel=0.01)


@both
@pytest.mark.parametrize(
    ("case", "gradient"), [("token mean", 3.75), ("token mean, a row at a time", 3.75), ("sequence mean", 5.5)]
)
def test_means_are_over_the_tokens_of_all_ranks(case: str, gradient: float, num_shards: int, found: Together) -> None:
    """DIST-01 and DIST-11: gradients of 1, 2, 3 on one rank and 9 on the other; clipped to a norm of 1."""
    for rank in found:
        together = rank[num_shards, case]
        assert together.steps[0]["loss"] == pytest.approx(gradient, abs=1e-6)
        assert together.steps[0]["grad_norm"] == pytest.approx(gradient, abs=1e-6)
        assert together.first_grads["weight"].item() == pytest.approx(1.0, abs=1e-6)
