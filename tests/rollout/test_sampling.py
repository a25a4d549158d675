"""Draws follow the tempered softmax, and filters never touch the log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rl_compat.rollout.sampling import call_seed, draw, keep_top, response_keys, signed64, uniforms
from rl_compat.rollout.session import requests_for
from rl_compat.rollout.types import SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
CHI_SQUARE_999 = {4: 18.47, 999: 1143.9}
"the 0.999 quantile by degrees of freedom"


def draws(logits: Tensor, count: int, seed: int = 0, **options: object) -> tuple[Tensor, Tensor]:
    uniform = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return draw(logits.expand(count, -1), uniform, **({"temperature": 1.0} | options))


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_draws_agree_with_the_tempered_softmax_by_chi_square(temperature: float) -> None:
    """A-GEN-01."""
    tokens, _ = draws(LOGITS, 20_000, temperature=temperature)
    probabilities = (LOGITS / temperature).softmax(-1)
    assert chi_square(tokens.bincount(minlength=5), probabilities) < CHI_SQUARE_999[4]


def test_draws_over_several_blocks_of_vocabulary_agree_with_the_softmax() -> None:
    logits = torch.linspace(-1, 1, 1000)[torch.randperm(1000, generator=torch.Generator().manual_seed(1))]
    tokens, _ = draws(logits, 50_000)
    assert chi_square(tokens.bincount(minlength=1000), logits.softmax(-1)) < CHI_SQUARE_999[999]


def test_every_uniform_number_hits_a_token_that_has_probability() -> None:
    logits = torch.full((600,), -torch.inf)
    logits[[3, 300, 511]] = torch.tensor([0.0, 1.0, -20.0])
    uniform = torch.tensor([0.0, 1e-300, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs = draw(logits.expand(4, -1), uniform, temperature=1.0)
    assert set(tokens.tolist()) <= {3, 300, 511}
    assert torch.isfinite(logprobs).all()


def test_the_logprob_of_a_token_at_temperature_one_half() -> None:
    """A-ALG-06: logits [2, 0] at T = 0.5."""
    tokens, logprobs = draw(torch.tensor([[2.0, 0.0]]), torch.zeros(1, dtype=torch.float64), temperature=0.5)
    assert tokens.tolist() == [0]
    assert logprobs.item() == pytest.approx(-0.0181, abs=1e-4)


def test_temperature_zero_is_the_argmax_with_the_logprob_at_temperature_one() -> None:
    tokens, logprobs = draw(LOGITS[None], None, temperature=0.0)
    assert tokens.tolist() == [0]
    assert logprobs.item() == pytest.approx(LOGITS.log_softmax(-1)[0].item())


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 50_000, dtype=torch.float16)
    _, logprobs = draw(logits, torch.full((1,), 0.3, dtype=torch.float64), temperature=1.0)
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-math.log(50_000), abs=1e-4)


def test_top_k_draws_only_the_k_most_likely() -> None:
    tokens, logprobs = draws(LOGITS, 2000, top_k=2)
    assert set(tokens.tolist()) == {0, 1}
    torch.testing.assert_close(logprobs, LOGITS.log_softmax(-1)[tokens])


def test_top_p_keeps_the_shortest_prefix_that_reaches_the_mass() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    for top_p, kept in ((0.3, 1), (0.5, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (0.0, 1)):
        assert int(torch.isfinite(keep_top(probabilities.log(), top_k=0, top_p=top_p)).sum()) == kept


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    kept = torch.isfinite(keep_top(probabilities.log(), top_k=2, top_p=0.55))
    assert kept.tolist() == [[True, False, False, False]]


def test_no_filter_keeps_the_logits_as_they_are() -> None:
    assert torch.equal(keep_top(LOGITS[None], top_k=0, top_p=1.0), LOGITS[None])
    assert torch.equal(keep_top(LOGITS[None], top_k=9, top_p=1.0), LOGITS[None])


def test_ids_beyond_the_tokenizer_are_not_drawn_even_when_the_logits_force_them() -> None:
    """A-GEN-05: vocabulary 64, tokenizer 50, id 57 forced."""
    logits = torch.zeros(64)
    logits[57] = 30.0
    for options in ({"temperature": 1.0}, {"temperature": 0.0}, {"top_k": 3}):
        tokens, logprobs = draws(logits, 500, num_valid_tokens=50, **options)
        assert int(tokens.max()) < 50
        torch.testing.assert_close(logprobs, logits.log_softmax(-1)[tokens])


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
