"""vLLM on two processes of a CPU, each with a part of every layer, against vLLM in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.handover_ranks import VLLM_CASES, handovers_on_ranks, one_engine, workers

from rl_compat.distributed.ranks import Solo

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def found(llama_folder: Path) -> list[dict[str, dict[str, Any]]]:
    return handovers_on_ranks(llama_folder, num_ranks=2, cases=tuple(VLLM_CASES))


def test_two_processes_generate_what_one_does_with_weights_that_both_share(
    found: list[dict[str, dict[str, Any]]], llama_folder: Path
) -> None:
    alone = workers(llama_folder, Solo(), engine="vllm")
    for rank in (rank["workers with vllm"] for rank in found):
        assert rank["responses"] == alone["responses"]
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert [one.version for one in rank["handovers"]] == [0, 1, 2]
        for one in rank["handovers"]:
            assert one.received_bytes == pytest.approx(one.full_bytes / 2, rel=0.01)
            assert one.written_bytes == one.full_bytes


def test_weights_and_requests_that_come_during_a_call_are_taken_at_one_step_of_both(
    found: list[dict[str, dict[str, Any]]], llama_folder: Path
) -> None:
    alone = one_engine(llama_folder, Solo(), engine="vllm")
    assert [versions for _, versions in alone["responses"][0]] == [(0, 0, 0, 1, 1, 1)] * 6
    for number, rank in enumerate(rank["one engine of vllm"] for rank in found):
        assert rank["responses"] == alone["responses"]
        assert rank["returned"] == [0 if number else 6] * 3


@pytest.mark.slow
def test_two_engines_of_two_processes_share_the_requests(llama_folder: Path) -> None:
    case = "workers with vllm"
    alone = workers(llama_folder, Solo(), engine="vllm")
    for rank in handovers_on_ranks(llama_folder, num_ranks=4, cases=(case,)):
        assert rank[case]["responses"] == alone["responses"]
        assert [one.version for one in rank[case]["handovers"]] == [0, 1, 2]
