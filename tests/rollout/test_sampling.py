"""Draws follow the tempered softmax, and filters never touch the log-probability."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_compat.rollout.sampling import draw, keep_top

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
