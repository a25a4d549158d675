"""Steps over slots: what is attended to, what is moved, and what a later call can see."""

from __future__ import annotations

import pytest
import torch
from rollout.conftest import plain_generate
from torch import nn

from rl_compat.rollout.native.decoder import SlotDecoder, decoder_over
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.weights import SharedWeights

GREEDY = SamplingParams(max_new_tokens=4, temperature=0.0)
PROMPTS = ((11, 12, 13, 14, 15), (21, 22), (31, 32, 33))
CAPACITY = 64


@pytest.fixture
def memory() -> SlotMemory:
    return SlotMemory(num_slots=6, capacity=CAPACITY)


@pytest.fixture
def decoder(llama: nn.Module, memory: SlotMemory) -> SlotDecoder:
    """Three prompts in the first three slots."""
    made = decoder_over(memory, SharedWeights(llama), own=True)
    with torch.no_grad():
        made.prefill([prompt[:-1] for prompt in PROMPTS], [[0], [1], [2]])
    return made


def steps(
    decoder: SlotDecoder, prompts: tuple[tuple[int, ...], ...], *, length: int, count: int = 4
) -> list[list[int]]:
    decoder.set_state(
        tokens=[prompt[-1] for prompt in prompts],
        positions=[len(prompt) - 1 for prompt in prompts],
        keys=range(len(prompts)),
        seeds=[0] * len(prompts),
        drawn=[0] * len(prompts),
    )
    with torch.no_grad():
        tokens, _, _ = decoder.steps(len(prompts), count=count, length=length, params=GREEDY)
    return tokens.T.tolist()


def test_only_the_filled_part_is_attended_to(decoder: SlotDecoder, memory: SlotMemory, llama: nn.Module) -> None:
    """NaN beyond it, and in slots that are not used, would spread through any product."""
    for pair in memory.layers.values():
        for states in pair:
            states[:, :, 16:] = torch.nan
            states[3:] = torch.nan
    assert steps(decoder, PROMPTS, length=16) == [plain_generate(llama, prompt, 4) for prompt in PROMPTS]


def test_a_moved_sequence_goes_on_where_it_was(decoder: SlotDecoder, llama: nn.Module) -> None:
    decoder.move([(2, 0)], length=3)
    turned = (PROMPTS[2], PROMPTS[1])
    assert steps(decoder, turned, length=16) == [plain_generate(llama, prompt, 4) for prompt in turned]


def test_one_slot_can_be_copied_to_several(decoder: SlotDecoder, llama: nn.Module) -> None:
    decoder.move([(0, 1), (0, 2)], length=5)
    expected = plain_generate(llama, PROMPTS[0], 4)
    assert steps(decoder, (PROMPTS[0],) * 3, length=16) == [expected] * 3


def test_tokens_behind_an_end_leave_the_slots_in_range(decoder: SlotDecoder, llama: nn.Module) -> None:
    """More steps than positions: extra draws stay at the last position."""
    tokens = steps(decoder, PROMPTS, length=8, count=12)
    assert [row[:3] for row in tokens] == [plain_generate(llama, prompt, 3) for prompt in PROMPTS]
