"""An update goes through a batch in whole groups."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from fakes.engines import random_batch

from rl_compat.batch import Batch
from rl_compat.distributed.ranks import Solo
from rl_compat.workers.mini_batches import balance, balance_metrics, mini_batches

LENGTHS = [(3, 1 + row % 4) for row in range(12)]


def grouped() -> Batch:
    """Four groups of three responses, their rows interleaved."""
    batch = random_batch(LENGTHS)
    return batch.with_(groups=batch.groups % 4)


def groups_of(batch: Batch, *, seed: int = 0, num_epochs: int = 1, prompts: int = 2) -> list[list[int]]:
    parts = mini_batches(batch, prompts_per_mini_batch=prompts, num_epochs=num_epochs, seed=seed)
    return [part.groups.tolist() for part in parts]


def test_every_response_is_seen_once_per_epoch_with_its_whole_group() -> None:
    """A-MEM-04: a mini-batch counts prompts."""
    parts = groups_of(grouped(), num_epochs=2)
    assert [len(part) for part in parts] == [6, 6, 6, 6]
    for epoch in (parts[:2], parts[2:]):
        assert Counter(group for part in epoch for group in part) == {0: 3, 1: 3, 2: 3, 3: 3}
        assert all(set(Counter(part).values()) == {3} for part in epoch)


def test_rows_keep_their_tokens() -> None:
    batch = grouped()
    parts = list(mini_batches(batch, prompts_per_mini_batch=1, num_epochs=1, seed=0))
    rows = {
        (prompt, tuple(ids[: int(length)].tolist()))
        for part in parts
        for prompt, ids, length in zip(part.prompt_ids, part.response_ids, part.response_lengths, strict=True)
    }
    expected = {
        (prompt, tuple(ids[: int(length)].tolist()))
        for prompt, ids, length in zip(batch.prompt_ids, batch.response_ids, batch.response_lengths, strict=True)
    }
    assert rows == expected


def test_the_order_depends_on_the_seed_and_the_epoch_alone() -> None:
    batch = random_batch([(2, 2)] * 16)
    one = groups_of(batch, seed=1, num_epochs=2, prompts=4)
    assert one == groups_of(batch, seed=1, num_epochs=2, prompts=4)
    assert one != groups_of(batch, seed=2, num_epochs=2, prompts=4)
    assert one[:4] != one[4:]


def test_a_last_part_that_is_smaller_is_used_too() -> None:
    """A-ALG-05"""
    assert [len(part) for part in groups_of(grouped(), prompts=3)] == [9, 3]


def test_balance_is_the_largest_share_over_the_mean() -> None:
    assert balance([[0, 1], [2]], [3, 1, 4]) == 1.0
    assert balance([[0], [1, 2], []], [9, 1, 2]) == 2.25
    assert balance([[], []], []) == 1.0


def test_balance_is_a_metric_of_several_ranks_only() -> None:
    batch = random_batch([(1, 9), (1, 4)]).with_(groups=torch.tensor([0, 1]))
    two = SimpleNamespace(size=2)
    assert balance_metrics(batch, two, role="actor") == {"perf/balance/actor": pytest.approx(20 / 15)}  # type: ignore[arg-type]
    assert balance_metrics(batch, Solo(), role="actor") == {}
