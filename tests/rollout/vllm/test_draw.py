"""Drawing inside a batch that another program arranges: whose row is whose, and which draw counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rollout.emulated_kernels import COMPILER, EmulatedKernels

from rl_compat.rollout.kernels.choice import chosen_draw
from rl_compat.rollout.kernels.fused_ops import FusedDraw
from rl_compat.rollout.sampling import Draw, draw, plain_draw, raw_logprobs, uniforms
from rl_compat.rollout.session import PartialResponse
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.vllm.draw import MOST_UNIFORMS, DrawTable, SlotResponses

PARAMS = SamplingParams(max_new_tokens=4, temperature=0.7, top_p=0.9, top_k=20, min_p=0.01, raw_logprobs=True)


KEYS = (70, 2**62 + 9, 31)


def responses(params: SamplingParams, *, num_drawn: int = 0) -> list[PartialResponse]:
    """One for each of KEYS, with so many tokens already."""
    return [
        PartialResponse(number=n, prompt_ids=(1,), params=params, seed=5, key=key, token_ids=[9] * num_drawn)
        for n, key in enumerate(KEYS)
    ]


def table(
    params: SamplingParams = PARAMS,
    *,
    num_responses: int = 3,
    num_valid_tokens: int | None = None,
    draw: Draw = plain_draw,
    most_uniforms: int = MOST_UNIFORMS,
) -> DrawTable:
    made = DrawTable(
        params,
        num_valid_tokens=num_valid_tokens,
        device=torch.device("cpu"),
        draw=draw,
        most_uniforms=most_uniforms,
    )
    assert made.add(responses(params)[:num_responses]) == list(range(num_responses))
    return made


def tokens_of(subject: DrawTable, row: int) -> list[int]:
    return subject.drawn([row])[0][0]


def logits(seed: int, rows: int = 2) -> torch.Tensor:
    return 3 * torch.randn(rows, 97, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_drawn", [0, 2])
def test_a_draw_is_that_of_every_other_engine_at_the_same_seed_key_and_step(num_drawn: int) -> None:
    """A response that was taken out and added again draws what it would have drawn."""
    given = logits(1)
    numbers = uniforms(torch.tensor(5), torch.tensor([KEYS[2], KEYS[0]]), torch.tensor([3, 2]))
    tokens, logprobs = draw(given, numbers, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)
    raw = raw_logprobs(given, tokens)
    ours = DrawTable(PARAMS, num_valid_tokens=None, device=torch.device("cpu"))
    ours.add(responses(PARAMS, num_drawn=num_drawn))

    left = ours.draw(given.clone(), [2, 0], [3 - num_drawn, 2 - num_drawn])

    drawn = [[part[step - num_drawn] for part in row] for row, step in zip(ours.drawn([2, 0]), (3, 2), strict=True)]
    assert left.argmax(dim=1).tolist() == tokens.tolist() == [row[0] for row in drawn]
    assert (left == -torch.inf).sum(dim=1).tolist() == [96, 96]
    assert [row[1] for row in drawn] == logprobs.tolist()
    assert [row[2] for row in drawn] == raw.tolist()


def test_the_last_draw_of_a_step_counts() -> None:
    """A prompt prefilled in two chunks, and a response preempted and prefilled again, come to the same step twice."""
    greedy = SamplingParams(max_new_tokens=4, temperature=0.0)
    ours = table(greedy)
    ours.draw(logits(1), [0, 1], [0, 0])
    again = logits(2)
    ours.draw(again.clone(), [0, 1], [0, 0])
    assert [tokens_of(ours, row)[0] for row in (0, 1)] == again.argmax(dim=1).tolist()


def test_a_step_beyond_the_last_changes_nothing_that_counts() -> None:
    greedy = SamplingParams(max_new_tokens=2, temperature=0.0)
    ours = table(greedy, num_responses=1)
    for step in range(3):
        ours.draw(logits(step, rows=1), [0], [step])
    expected = [int(logits(step, rows=1).argmax()) for step in range(2)]
    assert tokens_of(ours, 0)[:2] == expected
    ours.draw(logits(9, rows=1), [0], [7])
    assert tokens_of(ours, 0)[:2] == expected


def test_ids_beyond_the_tokenizer_are_never_drawn() -> None:
    ours = table(SamplingParams(max_new_tokens=50, temperature=5.0), num_responses=1, num_valid_tokens=10)
    for step in range(50):
        ours.draw(logits(step, rows=1), [0], [step])
    assert max(tokens_of(ours, 0)) < 10


@pytest.mark.skipif(COMPILER is None, reason="g++ runs the kernels on the CPU")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_kernel_draws_what_pytorch_draws(temperature: float) -> None:
    """Also from logits that are a part of wider ones, which a kernel cannot read."""
    params = SamplingParams(max_new_tokens=4, temperature=temperature, min_p=0.01, raw_logprobs=True)
    kernels = EmulatedKernels({"STREAM": "float", "NORM": "float", "COMPUTE": "float", "HEAD_DIM": 64, "GROUP": 1})
    plain = table(params, num_valid_tokens=90)
    ours = table(params, num_valid_tokens=90, draw=FusedDraw(kernels))
    for step in range(4):
        wide = torch.cat([logits(step), torch.full((2, 3), 50.0)], dim=1)
        left, expected = (one.draw(wide.clone()[:, :97], [2, 0], [step, step]) for one in (ours, plain))
        assert torch.equal(left, expected)
    assert kernels.launched == ["draw"] * 4
    for mine, theirs in zip(ours.drawn(range(3)), plain.drawn(range(3)), strict=True):
        assert mine[0] == theirs[0]
        for part in (1, 2):
            torch.testing.assert_close(torch.tensor(mine[part]), torch.tensor(theirs[part]), atol=2e-5, rtol=1e-5)


def test_a_table_too_large_for_all_its_random_numbers_at_once_draws_the_same() -> None:
    whole, stepwise = table(), table(most_uniforms=14)
    for step in range(6):
        given = logits(step)
        assert torch.equal(stepwise.draw(given.clone(), [2, 1], [step, 2]), whole.draw(given, [2, 1], [step, 2]))
    assert stepwise.drawn(range(3)) == whole.drawn(range(3))


def test_rows_of_earlier_responses_are_reused_and_further_ones_leave_the_others_alone() -> None:
    greedy = SamplingParams(max_new_tokens=4, temperature=0.0)
    ours = table(greedy)
    ours.draw(logits(1, rows=3), [0, 1, 2], [0, 0, 0])
    kept = tokens_of(ours, 2)[0]
    ours.free([1, 0])
    longer = replace(greedy, max_new_tokens=9)
    assert ours.add(responses(longer)) == [1, 0, 3]
    assert tokens_of(ours, 2)[0] == kept
    ours.draw(logits(2, rows=1), [3], [8])
    assert tokens_of(ours, 3)[8] == int(logits(2, rows=1).argmax())


def test_without_a_gpu_drawing_is_left_to_pytorch() -> None:
    assert chosen_draw(97, rows=4, device=torch.device("cpu"), architecture=None) is plain_draw


def test_rows_follow_what_is_added_moved_exchanged_and_removed() -> None:
    slots = SlotResponses()
    outputs: list[list[int]] = [[], [7], [7, 7]]
    slots.update(removed=[], added=[(row, 10 + row, outputs[row]) for row in range(3)], moved=[])
    assert slots.rows(3) == ([10, 11, 12], [0, 1, 2])

    outputs[0].append(3)
    slots.update(removed=[1], added=[], moved=[(2, 1, False)])
    assert slots.rows(2) == ([10, 12], [1, 2])

    slots.update(removed=[], added=[(2, 13, [])], moved=[(0, 1, True)])
    assert slots.rows(3) == ([12, 10, 13], [2, 1, 0])

    slots.update(removed=[0], added=[(0, 14, [1])], moved=[])
    assert slots.rows(3) == ([14, 10, 13], [1, 1, 0])


def test_lengths_are_known_of_responses_that_have_left_the_batch() -> None:
    slots = SlotResponses()
    first: list[int] = [1, 2]
    slots.update(removed=[], added=[(0, 5, first), (1, 6, [])], moved=[])
    slots.update(removed=[0], added=[], moved=[(1, 0, False)])
    first.append(3)
    assert slots.lengths() == {5: 3, 6: 0}
    slots.forget([5])
    assert slots.lengths() == {6: 0}


def test_a_row_that_nobody_announced_is_an_error() -> None:
    with pytest.raises(KeyError):
        SlotResponses().rows(1)
