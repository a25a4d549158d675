from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from rl_compat.algorithms.logprobs import entropy, token_logprobs


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.0181), (1.0, -0.1269)])
def test_temperature_divides_the_logits(temperature, expected):
    """A-ALG-06."""
    logprob = token_logprobs(torch.tensor([2.0, 0.0]), torch.tensor(0), temperature=temperature)

    assert logprob.item() == pytest.approx(expected, abs=5e-5)


def test_token_logprobs_pick_the_log_softmax_of_each_token():
    torch.manual_seed(0)
    logits, ids = torch.randn(2, 3, 11), torch.randint(11, (2, 3))

    picked = token_logprobs(logits, ids, temperature=0.7)

    expected = torch.log_softmax(logits / 0.7, dim=-1)
    assert_close(picked, torch.stack([expected[b, t, ids[b, t]] for b in range(2) for t in range(3)]).view(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_handled_in_float32(dtype):
    logits = torch.linspace(-30, 30, 1000).to(dtype)

    logprob = token_logprobs(logits, torch.tensor(3), temperature=1.0)

    assert logprob.dtype == torch.float32
    assert_close(logprob, torch.log_softmax(logits.float(), dim=-1)[3])
    assert entropy(logits, temperature=1.0).dtype == torch.float32


def test_logprobs_stay_finite_for_logits_that_overflow_a_plain_exponential():
    logits = torch.tensor([1e4, -1e4, 0.0])

    assert token_logprobs(logits, torch.tensor(1), temperature=1.0).item() == -2e4
    assert entropy(logits, temperature=1.0).item() == 0


def test_entropy_of_equal_logits_is_the_log_of_their_number():
    assert entropy(torch.full((4, 8), 3.0), temperature=0.3).tolist() == pytest.approx([math.log(8)] * 4)


def test_entropy_ignores_tokens_of_probability_zero_and_has_a_finite_gradient():
    logits = torch.tensor([1.0, 2.0, -torch.inf], requires_grad=True)

    value = entropy(logits, temperature=1.0)
    value.backward()

    assert_close(value, entropy(torch.tensor([1.0, 2.0]), temperature=1.0))
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[2].item() == 0


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (2, 3))

    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, ids, temperature=0.8), (logits,))
    assert torch.autograd.gradcheck(lambda x: entropy(x, temperature=0.8), (logits,))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(AssertionError, match="temperature"):
        token_logprobs(torch.zeros(2), torch.tensor(0), temperature=0.0)


def test_matches_the_golden_entropy(golden):
    measured = entropy(golden.output("entropy", "logits"), temperature=1.0)

    assert_close(measured, golden.output("entropy", "entropy"), atol=1e-6, rtol=0)
