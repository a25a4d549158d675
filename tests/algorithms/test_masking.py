from __future__ import annotations

import torch
from torch.testing import assert_close

from rl_compat.algorithms.masking import length_mask, masked_mean, masked_sum, masked_variance, whiten

NAN = float("nan")


def test_length_mask_marks_the_tokens_before_the_length_whatever_their_ids():
    """A-ALG-07, A-ALG-08: the mask comes from lengths, so neither a missing nor a repeated end token matters."""
    assert length_mask(torch.tensor([3, 2, 2, 1, 0, 5]), 5).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1],
    ]


def test_statistics_count_only_what_the_mask_selects():
    x = torch.tensor([[1.0, 2.0, NAN], [6.0, float("inf"), NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])

    assert masked_sum(x, mask=mask).item() == 9
    assert masked_mean(x, mask=mask).item() == 3
    assert masked_variance(x, mask=mask).item() == 7
    assert masked_sum(x, mask=mask, dim=1).tolist() == [3, 6]
    assert masked_mean(x, mask=mask, dim=1).tolist() == [1.5, 6]


def test_statistics_of_nothing_are_zero_and_still_have_a_gradient():
    x = torch.randn(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)

    total = masked_sum(x, mask=mask) + masked_mean(x, mask=mask) + masked_variance(x, mask=mask)
    total.backward()

    assert total.item() == 0
    assert x.grad is not None
    assert x.grad.abs().sum().item() == 0


def test_half_precision_is_summed_in_float32():
    x = torch.full((4096,), 1.001, dtype=torch.float16)

    total = masked_sum(x, mask=torch.ones(4096, dtype=torch.bool))

    assert total.dtype == torch.float32
    assert_close(total, x.float().sum())


def test_whitened_values_have_zero_mean_and_unit_variance_over_the_mask():
    torch.manual_seed(0)
    x, mask = 3 * torch.randn(8, 9) + 5, torch.rand(8, 9) < 0.7

    white = whiten(x, mask=mask)

    assert white.dtype == torch.float32
    assert_close(white[mask].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(white[mask].var(), torch.tensor(1.0), atol=1e-6, rtol=0)
    assert white[~mask].abs().max().item() == 0


def test_whitening_by_hand():
    x, mask = torch.tensor([1.0, 5.0, 9.0, NAN]), torch.tensor([True, True, True, False])

    assert_close(whiten(x, mask=mask), torch.tensor([-1.0, 0.0, 1.0, 0.0]))


def test_whitening_equal_values_gives_exactly_zero():
    mask = torch.ones(3, 5, dtype=torch.bool)

    assert whiten(torch.full((3, 5), 0.1), mask=mask).abs().max().item() == 0


def test_whitening_one_value_or_none_is_defined():
    x, one, none = torch.tensor([[2.5, 7.0]]), torch.tensor([[True, False]]), torch.tensor([[False, False]])

    assert whiten(x, mask=one).tolist() == [[0, 0]]
    assert whiten(x, mask=none).tolist() == [[0, 0]]


def test_matches_the_golden_statistics(golden):
    """Whitening deviates on purpose outside the mask: 0 here, a whitened leftover there."""
    values, mask = golden.input("values"), golden.mask

    assert_close(masked_mean(values, mask=mask), golden.output("masked", "masked_mean(values)"), atol=1e-6, rtol=0)
    assert_close(masked_variance(values, mask=mask), golden.output("masked", "masked_var(values)"), atol=1e-6, rtol=0)
    white = whiten(values, mask=mask)
    assert_close(white[mask], golden.output("masked", "masked_whiten(values)")[mask], atol=1e-6, rtol=0)
    assert white[~mask].abs().max().item() == 0
