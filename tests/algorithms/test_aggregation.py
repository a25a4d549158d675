from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.losses.policy import aggregate

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
NAN = float("nan")


def counts(mask: Tensor) -> dict[str, int]:
    return {"num_tokens": int(mask.sum()), "num_sequences": int(mask.any(1).sum()), "width": mask.shape[1]}


@pytest.mark.parametrize("mode", MODES)
def test_the_last_micro_batch_counts_by_what_is_in_it(mode):
    """A-ALG-05: five sequences as 2 + 2 + 1."""
    torch.manual_seed(0)
    losses, mask = (
        torch.randn(5, 4, dtype=torch.float64),
        torch.arange(4)[None, :] < torch.tensor([4, 1, 2, 3, 4])[:, None],
    )
    denominators = counts(mask)

    parts = [aggregate(losses[i : i + 2], mask=mask[i : i + 2], mode=mode, **denominators) for i in (0, 2, 4)]

    assert_close(sum(parts), aggregate(losses, mask=mask, mode=mode, **denominators))


def test_token_mean_under_accumulation_is_the_mean_of_all_tokens():
    """A-ALG-04: 1.75, where the mean of the two means would be 2.5; two ranks add up like two micro-batches."""
    losses = torch.tensor([[4.0, 0.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, True]])

    parts = [
        aggregate(losses[i : i + 1], mask=mask[i : i + 1], mode="token-mean", num_tokens=4, num_sequences=2)
        for i in range(2)
    ]
    sum(parts).backward()

    assert sum(part.item() for part in parts) == 1.75
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.25, 0, 0], [0.25, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 7 / 4),
        ("token-sum", 7.0),
        ("seq-mean-token-sum", 7 / 2),
        ("seq-mean-token-mean", (4 + 1) / 2),
        ("seq-mean-token-sum-norm", 7 / 2 / 10),
    ],
)
def test_hand_worked_aggregations(mode, expected):
    losses, mask = torch.tensor([[4.0, NAN, 9.0], [1.0, 1.0, 1.0]]), torch.tensor([[True, False, False], [True] * 3])

    total = aggregate(losses, mask=mask, mode=mode, num_tokens=4, num_sequences=2, width=10)

    assert total.item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("denominators", [(0, 0), (12, 3)], ids=["whole step", "one micro-batch"])
def test_nothing_under_the_mask_is_a_loss_of_zero_that_can_run_backward(mode, denominators):
    """A-ALG-13."""
    losses, mask = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4, dtype=torch.bool)
    num_tokens, num_sequences = denominators

    total = aggregate(losses, mask=mask, mode=mode, num_tokens=num_tokens, num_sequences=num_sequences, width=7)
    total.backward()

    assert total.item() == 0
    assert losses.grad is not None
    assert losses.grad.abs().max().item() == 0


@pytest.mark.parametrize("mode", MODES)
def test_masked_rows_and_columns_change_nothing(responses, mode):
    losses = torch.nn.functional.pad(responses.logprobs, (0, 2, 0, 3), value=NAN)
    mask = torch.nn.functional.pad(responses.mask, (0, 2, 0, 3))

    padded = aggregate(losses, mask=mask, mode=mode, **counts(responses.mask))

    assert_close(padded, aggregate(responses.logprobs, mask=responses.mask, mode=mode, **counts(responses.mask)))


def test_the_norm_needs_a_width_and_an_unknown_mode_is_refused():
    losses, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)

    with pytest.raises(AssertionError) as error:
        aggregate(losses, mask=mask, mode="seq-mean-token-sum-norm", num_tokens=1, num_sequences=1)
    assert "width" in str(error.value)
    with pytest.raises(AssertionError) as error:
        aggregate(losses, mask=mask, mode="mean-of-means", num_tokens=1, num_sequences=1)  # type: ignore[arg-type]
    assert "mean-of-means" in str(error.value)


@pytest.mark.parametrize("mode", MODES)
def test_matches_the_golden_aggregations(golden, mode):
    total = aggregate(golden.input("advantages"), mask=golden.mask, mode=mode, **counts(golden.mask))

    assert_close(total, golden.output("aggregate", mode), atol=1e-6, rtol=0)
