"""Ranks that compute each layer together give the loss, the gradients, the weights and the tokens of one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from fakes.ranks import CASES, TENSOR, Found, Run, assert_equal, run_on_ranks

from rl_compat.distributed.ranks import Solo

BY_DEFAULT = (
    *("ppo actor, ragged groups", "dpo", "adapters", "handover"),
    "out of memory between two sums in backward",
    "kept whole: none",
)
SLOW = (
    *("ppo actor, ragged groups", "ppo critic, ragged groups", "grpo, a rank without rows", "kto", "sft, packed"),
    *("reward model", "states on the host", "adapters on a bf16 base", "resumed", "resumed from one process"),
    *("resumed with adapters", "infinite gradient on one rank", "nothing to learn", "uneven micro-batches", "handover"),
    *("out of memory in backward on one rank", "out of memory between two sums"),
    *("resumed by one process", "families"),
)


@pytest.fixture(scope="module")
def found(llama_folder: Path) -> list[dict[Run, Found]]:
    """What each of two processes found that are one rank."""
    return run_on_ranks(llama_folder, num_ranks=2, runs=[(TENSOR, case) for case in BY_DEFAULT])


@pytest.fixture(scope="module")
def alone(llama_folder: Path) -> Callable[[str], Found]:
    return cache(lambda case: CASES[case](llama_folder, Solo()))


@pytest.mark.parametrize("case", BY_DEFAULT)
def test_two_processes_train_as_one_does(
    case: str, found: list[dict[Run, Found]], alone: Callable[[str], Found]
) -> None:
    for process in found:
        assert_equal(process[TENSOR, case], alone(case))


@pytest.mark.parametrize("case", BY_DEFAULT)
def test_both_processes_hold_the_same_weights_and_limits(case: str, found: list[dict[Run, Found]]) -> None:
    one, other = (process[TENSOR, case] for process in found)
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    assert one.steps == other.steps
    assert one.extra.get("limits") == other.extra.get("limits")


def test_the_rollout_of_each_process_generates_the_tokens_of_one(
    found: list[dict[Run, Found]], alone: Callable[[str], Found]
) -> None:
    for process in found:
        assert process[TENSOR, "handover"].extra["responses"] == alone("handover").extra["responses"]
        (handover,) = process[TENSOR, "handover"].extra["handovers"]
        assert 0.98 * handover.full_bytes < 2 * handover.received_bytes <= handover.full_bytes


def test_a_layer_sums_hidden_states_twice_forward_and_twice_backward(found: list[dict[Run, Found]]) -> None:
    """Ten micro-batches through two layers; the rest is the norm of the gradient, and what ranks agree on."""
    for process in found:
        counted = process[TENSOR, "kept whole: none"].extra["exchanges"]
        assert counted.counts["all_reduce"] == 10 * 2 * 2 + 2
        assert counted.num_bytes["all_reduce"] == pytest.approx(counted.num_bytes["allreduce_"], rel=0.02)


def test_out_of_memory_on_one_process_repeats_the_step_on_both(found: list[dict[Run, Found]]) -> None:
    one, other = (process[TENSOR, "out of memory between two sums in backward"].extra for process in found)
    assert one["limits"].max_rows == other["limits"].max_rows == 2
    assert (len(one["notes"]), len(other["notes"])) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 4])
def test_two_ranks_of_two_processes_train_as_one_process_does(
    num_shards: int, llama_folder: Path, alone: Callable[[str], Found]
) -> None:
    """Two replicas of two processes, and one copy on all four."""
    runs = [(-num_shards, case) for case in SLOW]
    for process in run_on_ranks(llama_folder, num_ranks=4, runs=runs):
        for run in runs:
            assert_equal(process[run], alone(run[1]))
