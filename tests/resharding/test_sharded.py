"""Weights that are sharded over ranks reach the storage of every rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.handover_ranks import BUCKET, CASES, LARGER_CASES, handovers_on_ranks, one_engine, queue, workers

from rl_compat.distributed.ranks import Solo

Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, llama_folder: Path) -> Found:
    return handovers_on_ranks(llama_folder, num_ranks=request.param)


def test_every_case_ran_on_every_rank(found: Found) -> None:
    assert all(set(rank) == set(CASES if len(found) == 2 else LARGER_CASES) for rank in found)


@pytest.mark.parametrize("case", ["generate and learn", "replicas"])
def test_each_rollout_generates_as_a_fresh_copy_of_the_newest_weights_does(case: str, found: Found) -> None:
    """DIST-08"""
    for rank in (rank[case] for rank in found if case in rank):
        assert rank["responses"] == rank["expected"]
        assert rank["responses"][0] != rank["responses"][1]
        assert [versions[0] for turn in rank["responses"] for _, versions in turn] == [0] * 6 + [1] * 6 + [2] * 6
        assert rank["equal"] == [True] * 4
        assert all(norm > 0 for norm in rank["norms"])
        assert rank["released"] == 0


def test_the_rollout_keeps_its_addresses_and_the_trainer_its_shards(found: Found) -> None:
    ranks = [rank["generate and learn"] for rank in found]
    assert all(rank["same_addresses"] for rank in ranks)
    assert sum(rank["num_sharded"] for rank in ranks) == ranks[0]["num_weights"]


@pytest.mark.parametrize("case", ["generate and learn", "replicas"])
def test_a_rank_receives_only_what_it_lacks_and_needs_one_bucket(case: str, found: Found) -> None:
    ranks = [rank[case] for rank in found if case in rank]
    num_shards = len(ranks) // (2 if case == "replicas" else 1)
    for turn in range(3 if ranks else 0):
        handovers = [rank["handovers"][turn] for rank in ranks]
        full_bytes = handovers[0].full_bytes
        received = sum(one.received_bytes for one in handovers)
        assert received == full_bytes * len(ranks) * (num_shards - 1) // num_shards
        for one in handovers:
            assert one.written_bytes == one.full_bytes == 4 * ranks[0]["num_weights"]
            assert 0 < one.peak_bytes <= BUCKET < one.full_bytes
            assert one.version == turn


def test_workers_of_several_ranks_generate_and_learn_as_one_process_does(found: Found, llama_folder: Path) -> None:
    alone = workers(llama_folder, Solo())
    assert alone["handovers"] == []
    for rank in (rank["workers"] for rank in found):
        assert rank["responses"] == alone["responses"]
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert [one.version for one in rank["handovers"]] == [0, 1, 2]
        assert rank["bytes"] == [0, 0, 0]


def test_a_fast_engine_takes_more_of_the_requests_and_no_token_depends_on_who_takes_them(
    found: Found, llama_folder: Path
) -> None:
    """DIST-10"""
    alone = queue(llama_folder, Solo())["calls"]
    ranks = [rank["queue"] for rank in found]
    for call, expected in enumerate(alone):
        parts = [rank["calls"][call] for rank in ranks]
        assert sorted(place for part in parts for place in part) == list(range(48))
        for part in parts:
            for place, response in part.items():
                assert response.token_ids == expected[place].token_ids
                assert response.logprobs == pytest.approx(expected[place].logprobs, abs=1e-5)
        assert len(parts[-1]) < min(len(part) for part in parts[:-1])
    assert alone[0][0].token_ids != alone[0][44].token_ids, "a prompt that comes twice has other responses"
    assert [rank["progress"] for rank in ranks] == [len(rank["calls"][-1]) for rank in ranks]


def test_processes_that_are_one_engine_take_news_at_the_same_step_whenever_it_reaches_each_of_them(
    found: Found, llama_folder: Path
) -> None:
    alone = one_engine(llama_folder, Solo())
    assert [versions for _, versions in alone["responses"][0]] == [(0, 0, 0, 1, 1, 1)] * 6
    assert {number for _, versions in alone["responses"][1] for number in versions} == {1}
    assert [len(tokens) for tokens, _ in alone["responses"][2]] == [3] * 6
    for number, rank in enumerate(rank["one engine"] for rank in found):
        assert rank["responses"] == alone["responses"]
        assert rank["returned"] == [0 if number else 6] * 3


def test_weights_of_another_dtype_are_rounded_once(found: Found) -> None:
    for rank in (rank["half precision"] for rank in found):
        assert rank["equal"]
        assert rank["dtype"] == "torch.bfloat16"
        assert rank["handover"].received_bytes < rank["handover"].full_bytes / 2


def test_an_iteration_gives_whole_weights(found: Found) -> None:
    for rank in (rank["whole weights"] for rank in found):
        assert (rank["equal"], rank["names"], rank["rounded"]) == (True, True, True)
        assert 0 < rank["peak"] <= 2 * BUCKET + rank["largest"] < rank["full"]


def test_of_a_policy_with_adapters_the_base_moves_once(found: Found) -> None:
    for rank in (rank["adapters"] for rank in found):
        both, few = rank["num_all"], rank["num_adapters"]
        assert [one.num_weights for one in rank["handovers"]] == [both, few, few, both]
        assert rank["handovers"][1].written_bytes < rank["handovers"][0].written_bytes / 4
        assert rank["equal"] == [True] * 4


def test_the_ranks_publish_each_weight_once_for_another_pool(found: Found) -> None:
    for rank in (rank["published"] for rank in found):
        assert rank["equal"] == [True, True]
        assert rank["num_bytes"] <= sum(rank["sent"][0]) < 1.1 * rank["num_bytes"]
        assert max(rank["sent"][0]) < 1.5 * min(rank["sent"][0])
        assert rank["handovers"][0].received_bytes == sum(rank["sent"][0])


def test_any_layout_reaches_any_other(found: Found) -> None:
    for rank in (rank["random layouts"] for rank in found):
        assert rank["wrong"] == []
        assert rank["gathered"] > 0


@pytest.mark.parametrize("case", ["other dimension", "two dimensions"])
def test_shards_of_other_dimensions_and_meshes_are_put_together(case: str, found: Found) -> None:
    assert all(rank[case]["equal"] for rank in found if case in rank)
