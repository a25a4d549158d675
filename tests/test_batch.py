from __future__ import annotations

import pytest
import torch

from rl_compat.batch import Batch
from rl_compat.errors import ConfigError
from rl_compat.trajectory import Prompt, Trajectory

END = 2


def _trajectory(*response_ids: int, prompt: tuple[int, ...] = (7, 8), group: int = 0) -> Trajectory:
    ended = bool(response_ids) and response_ids[-1] == END
    return Trajectory(
        prompt=Prompt(token_ids=prompt, text="p"),
        group=group,
        response_ids=response_ids,
        rollout_logprobs=tuple(-0.1 * (i + 1) for i in range(len(response_ids))),
        finish_reason="stop" if ended else "length",
    )


def test_the_mask_comes_from_lengths_when_pad_and_end_are_the_same_token() -> None:
    """A-DATA-09, A-ALG-08"""
    batch = Batch.from_trajectories(
        [_trajectory(5, 6, END), _trajectory(5, 6, 9, 9, END), _trajectory(END), _trajectory(5, END, END)]
    )
    assert batch.response_mask.int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0],
    ]
    assert batch.response_lengths.tolist() == [3, 5, 1, 3]
    assert batch.truncated.tolist() == [False] * 4


def test_a_response_without_end_token_is_masked_to_its_length_and_marked_truncated() -> None:
    """A-ALG-07"""
    batch = Batch.from_trajectories([_trajectory(7, 8, 9), _trajectory(7, 8, 9, 9, 9)])
    assert batch.response_mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.truncated.tolist() == [True, True]


def test_an_empty_response_has_an_empty_mask() -> None:
    """A-REW-11"""
    batch = Batch.from_trajectories([_trajectory(), _trajectory(5, END)])
    assert batch.response_mask.int().tolist() == [[0, 0], [1, 1]]
    assert Batch.from_trajectories([_trajectory()]).response_mask.shape == (1, 1)


def test_ids_logprobs_and_groups_keep_their_places() -> None:
    batch = Batch.from_trajectories([_trajectory(5, END, group=3), _trajectory(6, group=4)])
    assert batch.response_ids.tolist() == [[5, END], [6, 0]]
    assert batch.groups.tolist() == [3, 4]
    assert batch.rollout_logprobs is not None
    torch.testing.assert_close(batch.rollout_logprobs, torch.tensor([[-0.1, -0.2], [-0.1, 0.0]]))
    assert batch.sequence_lengths() == [4, 3]


def test_selecting_rows_reorders_every_field_and_trims_to_the_longest() -> None:
    batch = Batch.from_trajectories(
        [_trajectory(5, 6, 9, END, prompt=(1,)), _trajectory(6, prompt=(2, 2), group=1), _trajectory(5, END, group=2)]
    ).with_(rewards=torch.tensor([0.0, 1.0, 2.0]))
    chosen = batch.select([2, 1])
    assert chosen.prompt_ids == ((7, 8), (2, 2))
    assert chosen.response_ids.tolist() == [[5, END], [6, 0]]
    assert chosen.response_mask.int().tolist() == [[1, 1], [1, 0]]
    assert chosen.groups.tolist() == [2, 1]
    assert chosen.rewards is not None
    assert chosen.rewards.tolist() == [2.0, 1.0]
    assert chosen.values is None


def test_a_field_of_another_shape_is_refused() -> None:
    batch = Batch.from_trajectories([_trajectory(5, END)])
    with pytest.raises(ConfigError, match="`values`"):
        batch.with_(values=torch.zeros(1, 3))


def test_joined_batches_keep_their_rows_and_share_a_width() -> None:
    short = Batch.from_trajectories([_trajectory(5, END, group=1)]).with_(advantages=torch.ones(1, 2))
    long = Batch.from_trajectories([_trajectory(6, 7, 8, group=2), _trajectory(9, group=2)])
    long = long.with_(advantages=torch.full((2, 3), 2.0), weights=torch.full((2, 3), 0.5))

    both = short.joined(long)

    assert both.response_ids.tolist() == [[5, END, 0], [6, 7, 8], [9, 0, 0]]
    assert both.groups.tolist() == [1, 2, 2]
    assert both.advantages is not None and both.weights is not None
    assert both.advantages.tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]
    assert both.weights.tolist() == [[1, 1, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    assert long.joined(short).weights is not None
    assert short.joined(short).weights is None
    assert both.select([0]).response_ids.tolist() == [[5, END]]
