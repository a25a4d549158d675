"""Chunked log-probabilities against the plain computation."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_compat.training.chunked_logprobs import LogitRule, Statistic, chunked_logprobs

NUM_TOKENS, HIDDEN, VOCABULARY = 23, 8, 50


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True)
    return hidden, weight, bias, torch.randint(0, VOCABULARY, (NUM_TOKENS,))


def _plain(hidden, weight, bias, token_ids, rule):
    logits = (hidden @ weight.T + bias) * rule.scale
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    distribution = torch.distributions.Categorical(logits=logits / rule.temperature)
    return distribution.log_prob(token_ids), distribution.entropy()


@pytest.mark.parametrize(
    "rule",
    [
        LogitRule(),
        LogitRule(temperature=0.7),
        LogitRule(temperature=1.3, softcap=2.0),
        LogitRule(temperature=0.5, scale=0.25, softcap=3.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
def test_values_and_gradients_equal_the_plain_computation(rule: LogitRule, chunk_tokens: int) -> None:
    hidden, weight, bias, token_ids = _inputs()
    coefficients = torch.randn(2, NUM_TOKENS, dtype=torch.float64)
    expected = _plain(hidden, weight, bias, token_ids, rule)
    expected_grads = torch.autograd.grad((torch.stack(expected) * coefficients).sum(), (hidden, weight, bias))
    logprobs, entropy, _ = chunked_logprobs(
        hidden, weight, token_ids, bias=bias, rule=rule, chunk_tokens=chunk_tokens, wanted=("entropy",)
    )
    assert entropy is not None
    grads = torch.autograd.grad((torch.stack((logprobs, entropy)) * coefficients).sum(), (hidden, weight, bias))
    torch.testing.assert_close((logprobs, entropy), expected)
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.parametrize("rule", [LogitRule(), LogitRule(temperature=0.7, scale=1.5, softcap=2.0)], ids=str)
@pytest.mark.parametrize("wanted", [("sum_pi_squared",), ("entropy", "sum_pi_squared")], ids=str)
def test_the_sum_of_squared_probabilities_is_that_of_the_plain_softmax_in_any_chunks(
    rule: LogitRule, wanted: tuple[Statistic, ...]
) -> None:
    hidden, weight, bias, token_ids = _inputs()
    probabilities = torch.softmax(rule.apply(hidden @ weight.T + bias), dim=-1)

    found = chunked_logprobs(
        hidden,
        weight,
        token_ids,
        bias=bias,
        rule=rule,
        chunk_tokens=7,
        wanted=wanted,
    )

    assert found.sum_pi_squared is not None
    torch.testing.assert_close(found.sum_pi_squared, probabilities.square().sum(-1).detach())
    assert not found.sum_pi_squared.requires_grad
    assert (found.entropy is not None) == ("entropy" in wanted)


def test_temperature_divides_the_logits() -> None:
    """A-ALG-06: logits [2, 0], token 0, T = 0.5."""
    logprobs, *_ = chunked_logprobs(
        torch.tensor([[1.0]]),
        torch.tensor([[2.0], [0.0]]),
        torch.tensor([0]),
        rule=LogitRule(temperature=0.5),
        chunk_tokens=8,
    )
    assert logprobs.item() == pytest.approx(-0.0181, abs=1e-4)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, _, token_ids = _inputs()
    logprobs, *_ = chunked_logprobs(hidden, weight.detach(), token_ids, rule=LogitRule(), chunk_tokens=4)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_no_tokens_give_nothing_and_stay_connected() -> None:
    hidden, weight, _, _ = _inputs()
    none = torch.zeros(0, dtype=torch.int64)
    logprobs, *_ = chunked_logprobs(hidden[:0], weight, none, rule=LogitRule(), chunk_tokens=4)
    logprobs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_products_keep_fp32_statistics(dtype: torch.dtype) -> None:
    hidden, weight, _, token_ids = _inputs(torch.float32)
    exact, *_ = chunked_logprobs(hidden, weight, token_ids, rule=LogitRule(), chunk_tokens=5)
    exact_grad = torch.autograd.grad(exact.sum(), weight)[0]
    with torch.autocast("cpu", dtype=dtype):
        half, *_ = chunked_logprobs(hidden, weight, token_ids, rule=LogitRule(), chunk_tokens=5)
    grad = torch.autograd.grad(half.sum(), weight)[0]
    assert half.dtype == grad.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.05, rtol=0.02)
    torch.testing.assert_close(grad, exact_grad, atol=0.1, rtol=0.02)
    assert torch.equal(half, exact) == (dtype == torch.bfloat16), "bf16 would round logits too much, fp16 is used"


def test_weights_stored_in_half_are_multiplied_in_the_dtype_of_the_hidden_states() -> None:
    hidden, weight, _, token_ids = _inputs(torch.float32)
    stored = weight.detach().half()
    logprobs, *_ = chunked_logprobs(hidden, stored, token_ids, rule=LogitRule(), chunk_tokens=5)
    expected, *_ = chunked_logprobs(hidden, stored.float(), token_ids, rule=LogitRule(), chunk_tokens=5)
    assert torch.equal(logprobs, expected)


class _LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return output


def test_no_tensor_is_larger_than_a_chunk_of_logits() -> None:
    num_tokens, vocabulary, chunk_tokens = 400, 300, 20
    hidden = torch.randn(num_tokens, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    token_ids = torch.randint(0, vocabulary, (num_tokens,))
    with _LargestTensor() as largest:
        logprobs, entropy, _ = chunked_logprobs(
            hidden, weight, token_ids, rule=LogitRule(temperature=0.9), chunk_tokens=chunk_tokens, wanted=("entropy",)
        )
        assert entropy is not None
        (logprobs + entropy).sum().backward()
    assert largest.elements == chunk_tokens * vocabulary


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ("mm", "addmm", "addmm_", "linear")
        self.count += func.overloadpacket.__name__ in names
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("chunk_tokens", "computed_twice"), [(NUM_TOKENS, 0), (10, 2)])
def test_logits_of_the_last_chunk_are_computed_once(chunk_tokens: int, computed_twice: int) -> None:
    hidden, weight, _, token_ids = _inputs(torch.float32)
    num_chunks = 1 + computed_twice
    with _Products() as products:
        logprobs, *_ = chunked_logprobs(hidden, weight, token_ids, rule=LogitRule(), chunk_tokens=chunk_tokens)
        logprobs.sum().backward()
    assert products.count == 3 * num_chunks + computed_twice


def test_a_second_backward_through_the_same_graph_gives_the_same_gradients() -> None:
    hidden, weight, _, token_ids = _inputs()
    logprobs, *_ = chunked_logprobs(hidden, weight, token_ids, rule=LogitRule(), chunk_tokens=10)
    first = torch.autograd.grad(logprobs.sum(), (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
