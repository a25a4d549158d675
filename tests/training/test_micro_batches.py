"""Splitting rows by length, and the token matrix of a micro-batch."""

from __future__ import annotations

import torch
from fakes.engines import random_batch

from rl_compat.training.micro_batches import MicroBatchLimits, TokenMatrix, on_device, split_by_length


def test_every_row_is_in_exactly_one_micro_batch() -> None:
    """A-ALG-05: five rows in twos are 2+2+1."""
    pieces = split_by_length([4, 9, 2, 7, 5], MicroBatchLimits(max_rows=2))
    assert pieces == [[1, 3], [4, 0], [2]]


def test_padding_counts_towards_the_token_limit() -> None:
    pieces = split_by_length([10, 9, 2, 2, 2], MicroBatchLimits(max_rows=8, max_tokens=20))
    assert pieces == [[0, 1], [2, 3, 4]]


def test_a_row_over_the_token_limit_goes_alone() -> None:
    assert split_by_length([30, 3, 3], MicroBatchLimits(max_rows=8, max_tokens=10)) == [[0], [1, 2]]


def test_rows_of_equal_length_keep_their_order() -> None:
    assert split_by_length([5, 5, 5], MicroBatchLimits(max_rows=8)) == [[0, 1, 2]]


def test_halved_limits_shut_out_the_micro_batch_that_failed() -> None:
    halved = MicroBatchLimits(max_rows=8).halved(5, 100)
    assert halved == MicroBatchLimits(max_rows=2, max_tokens=50)


def test_token_matrix_puts_prompt_and_response_side_by_side() -> None:
    batch = random_batch([(2, 3), (1, 1)])
    matrix = TokenMatrix.from_batch(batch, device="cpu")
    prompt, response = list(batch.prompt_ids[0]), batch.response_ids[0].tolist()
    assert matrix.input_ids.tolist() == [
        prompt + response,
        [batch.prompt_ids[1][0], int(batch.response_ids[1, 0]), 0, 0, 0],
    ]
    assert matrix.predictors.tolist() == [1, 2, 3, 5]
    assert matrix.targets.tolist() == [*response, int(batch.response_ids[1, 0])]


def test_columns_come_back_where_the_response_tokens_are() -> None:
    matrix = TokenMatrix.from_batch(random_batch([(2, 3), (1, 1)]), device="cpu")
    columns = matrix.to_columns(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert columns.tolist() == [[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]


def test_moving_a_batch_keeps_every_field() -> None:
    batch = random_batch()
    moved = on_device(batch, "meta")
    assert moved.response_ids.device.type == "meta"
    assert moved.advantages is not None
    assert moved.advantages.device.type == "meta"
    assert moved.prompt_ids == batch.prompt_ids
