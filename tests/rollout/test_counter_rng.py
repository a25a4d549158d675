"""Random numbers that depend on a seed, a prompt, its copy and the step, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rl_compat.rollout.sampling import call_seed, response_keys, signed64, uniforms
from rl_compat.rollout.session import requests_for
from rl_compat.rollout.types import SamplingParams

MASK = 2**64 - 1
STABLE = [3063797257178047262, 9218755156117559438, 7432034122395091942]


def split_mix(state: int) -> int:
    """The finalizer of SplitMix64 in plain integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def by_hand(seed: int, row: int, step: int) -> float:
    stream = split_mix((row * 0x9E3779B97F4A7C15 + seed) & MASK)
    return (split_mix((stream + (step + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53


def numbers_of(seed: int, keys: Tensor, steps: Tensor) -> Tensor:
    return uniforms(torch.tensor(signed64(seed)), keys, steps)


def keys_of(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The keys of one response to each prompt, copies counted over all."""
    requests = requests_for(prompts, SamplingParams(max_new_tokens=1, seed=0))
    return response_keys([(request.prompt_ids, request.copy) for request in requests])


def grid(seed: int, rows: int, steps: int) -> Tensor:
    row, step = torch.meshgrid(torch.arange(rows), torch.arange(steps), indexing="ij")
    return numbers_of(seed, row.flatten(), step.flatten()).view(rows, steps)


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 17, 2**63 + 5, -3, 1_000_003 * 2**40])
def test_the_numbers_are_those_of_split_mix(seed: int) -> None:
    expected = [[by_hand(seed, row, step) for step in range(5)] for row in range(4)]
    assert grid(seed, 4, 5).tolist() == expected


def test_a_number_does_not_depend_on_what_else_is_drawn() -> None:
    whole = grid(7, 64, 32)
    rows, steps = torch.tensor([63, 5, 5]), torch.tensor([0, 31, 2])
    assert torch.equal(numbers_of(7, rows, steps), whole[rows, steps])


def test_numbers_are_uniform_and_rows_and_steps_independent() -> None:
    numbers = grid(3, 400, 500)
    assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
    assert abs(float(numbers.mean()) - 0.5) < 0.002
    counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 45
    centred = numbers - 0.5
    for one, other in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        assert abs(float((one * other).mean())) * 12 < 0.01
    assert len(numbers.unique()) == numbers.numel()


def test_neighbouring_seeds_share_no_stream() -> None:
    first, second = grid(10, 200, 50), grid(11, 200, 50)
    assert len(torch.cat([first.flatten(), second.flatten()]).unique()) == 2 * first.numel()


def test_keys_come_from_the_prompt_and_its_copy_alone() -> None:
    one, other, third = (5, 6, 7), (5, 6), (7, 6, 5)
    first = keys_of([one, one, other, one, third])
    assert keys_of([third, one, other, one, one]) == [first[i] for i in (4, 0, 2, 1, 3)]
    assert keys_of([list(other)]) == [first[2]]
    assert keys_of([torch.tensor(other).tolist()]) == [first[2]]


def test_keys_are_the_same_on_every_machine_and_in_every_process() -> None:
    assert keys_of([(5, 6, 7), (5, 6, 7), (2**40, 0)]) == STABLE


def test_keys_differ_and_fill_63_bits() -> None:
    prompts = [(i, j) for i in range(40) for j in range(40)] + [(i,) for i in range(40)]
    keys = torch.tensor(keys_of(prompts * 5))
    assert len(keys.unique()) == len(keys)
    assert int(keys.min()) >= 0
    bits = (keys[:, None] >> torch.arange(63)) & 1
    assert float((bits.double().mean(dim=0) - 0.5).abs().max()) < 0.03


def test_responses_of_neighbouring_keys_share_no_number() -> None:
    keys = torch.tensor(keys_of([(1, 2, 3)] * 200))
    numbers = numbers_of(7, keys[:, None].expand(-1, 100), torch.arange(100))
    assert len(numbers.unique()) == numbers.numel()
    centred = numbers - 0.5
    assert abs(float((centred[1:] * centred[:-1]).mean())) * 12 < 0.03


def test_without_a_seed_torchs_generator_gives_one() -> None:
    torch.manual_seed(4)
    first = call_seed(None)
    torch.manual_seed(4)
    assert (call_seed(None), call_seed(None) != first, call_seed(12)) == (first, True, 12)
