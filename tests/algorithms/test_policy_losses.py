from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.policy_losses import aggregate, ppo_clip_loss

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
NAN = float("nan")


def policy_loss(responses, logprobs: Tensor | None = None, rows=slice(None), *, clip_dual: float | None = 3.0):
    return ppo_clip_loss(
        logprobs=(responses.logprobs if logprobs is None else logprobs)[rows],
        old_logprobs=responses.old_logprobs[rows],
        advantages=responses.advantages[rows],
        response_mask=responses.mask[rows],
        clip_low=0.2,
        clip_high=0.28,
        clip_dual=clip_dual,
    )


def counts(mask: Tensor) -> dict[str, int]:
    return {"num_tokens": int(mask.sum()), "num_sequences": int(mask.any(1).sum()), "width": mask.shape[1]}


@pytest.mark.parametrize("clip_dual", [None, 1.5])
def test_equals_the_formula_token_by_token(responses, clip_dual):
    """Equation 7 of the PPO paper and equation 5 of the dual-clip paper, as a loop."""
    num_clipped = num_dual_clipped = 0
    sum_kl, expected = 0.0, torch.zeros_like(responses.logprobs)
    for b, t in responses.mask.nonzero().tolist():
        advantage = responses.advantages[b, t].item()
        difference = responses.logprobs[b, t].item() - responses.old_logprobs[b, t].item()
        ratio = math.exp(difference)
        objective = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        num_clipped += objective < ratio * advantage
        sum_kl -= difference
        if clip_dual is not None and advantage < 0:
            num_dual_clipped += objective < clip_dual * advantage
            objective = max(objective, clip_dual * advantage)
        expected[b, t] = -objective

    loss = policy_loss(responses, clip_dual=clip_dual)

    assert_close(loss.losses, expected)
    assert loss.num_clipped.item() == num_clipped > 0
    assert loss.num_dual_clipped.item() == num_dual_clipped
    assert loss.sum_kl.item() == pytest.approx(sum_kl)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [(1.0, 1.5, -1.2), (1.0, 0.5, -0.5), (-1.0, 0.5, 0.8), (-1.0, 1.5, 1.5), (-1.0, 10.0, 3.0), (0.0, 9.0, 0.0)],
)
def test_hand_worked_ratios(advantage, ratio, expected):
    loss = ppo_clip_loss(
        logprobs=torch.tensor([[math.log(ratio) - 5]]),
        old_logprobs=torch.tensor([[-5.0]]),
        advantages=torch.tensor([[advantage]]),
        response_mask=torch.tensor([[True]]),
        clip_low=0.2,
        clip_high=0.2,
        clip_dual=3.0,
    )

    assert loss.losses.item() == pytest.approx(expected, rel=1e-5)
    assert loss.num_dual_clipped.item() == (ratio == 10.0)


def test_a_dual_clip_of_one_or_less_is_refused(responses):
    with pytest.raises(AssertionError, match=r"clip_dual is 1\.0"):
        policy_loss(responses, clip_dual=1.0)


def test_extreme_ratios_leave_loss_and_gradient_finite():
    logprobs = torch.tensor([[0.0, -500.0, 0.0, -500.0]], requires_grad=True)

    loss = ppo_clip_loss(
        logprobs=logprobs,
        old_logprobs=torch.tensor([[-500.0, 0.0, -500.0, 0.0]]),
        advantages=torch.tensor([[1.0, 1.0, -1.0, -1.0]]),
        response_mask=torch.ones(1, 4, dtype=torch.bool),
        clip_low=0.2,
        clip_high=0.2,
        clip_dual=None,
    )
    loss.losses.sum().backward()

    assert loss.losses.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("filler", [0.0, 1e4, NAN, -math.inf])
def test_padding_changes_neither_loss_nor_gradient(responses, filler):
    """A-ALG-07."""

    def run(filler: float) -> tuple[Tensor, Tensor]:
        logprobs = responses.padded_with(responses.logprobs, filler).requires_grad_()
        loss = ppo_clip_loss(
            logprobs=logprobs,
            old_logprobs=responses.padded_with(responses.old_logprobs, filler),
            advantages=responses.padded_with(responses.advantages, filler),
            response_mask=responses.mask,
            clip_low=0.2,
            clip_high=0.2,
            clip_dual=3.0,
        )
        total = aggregate(loss.losses, mask=responses.mask, mode="token-mean", **counts(responses.mask))
        (gradient,) = torch.autograd.grad(total, logprobs)
        return torch.stack([total, loss.num_clipped, loss.num_dual_clipped, loss.sum_kl]).detach(), gradient

    numbers, gradient = run(filler)

    expected_numbers, expected_gradient = run(-1.0)
    assert torch.equal(numbers, expected_numbers)
    assert torch.equal(gradient, expected_gradient)
    assert gradient[~responses.mask].abs().max().item() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [[[0], [1], [2], [3], [4], [5]], [[0, 1], [2, 3], [4, 5]], [[5, 0, 3, 1], [4, 2]]])
def test_splitting_and_permuting_change_neither_loss_nor_gradient(responses, mode, parts):
    """A-ALG-05."""
    whole = responses.logprobs.clone().requires_grad_()
    split = responses.logprobs.clone().requires_grad_()
    denominators = counts(responses.mask)
    loss = policy_loss(responses, whole)
    expected = aggregate(loss.losses, mask=responses.mask, mode=mode, **denominators)
    expected.backward()

    total, num_clipped = 0.0, 0.0
    for rows in parts:
        part_loss = policy_loss(responses, split, rows)
        part = aggregate(part_loss.losses, mask=responses.mask[rows], mode=mode, **denominators)
        part.backward()
        total, num_clipped = total + part.item(), num_clipped + part_loss.num_clipped.item()

    assert total == pytest.approx(expected.item(), abs=1e-12)
    assert num_clipped == loss.num_clipped.item()
    assert_close(split.grad, whole.grad)


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
def test_nothing_under_the_mask_is_a_loss_of_zero_that_can_run_backward(responses, mode, denominators):
    """A-ALG-13."""
    logprobs = responses.logprobs.clone().requires_grad_()
    responses.mask[:] = False
    num_tokens, num_sequences = denominators

    losses = policy_loss(responses, logprobs).losses
    total = aggregate(
        losses, mask=responses.mask, mode=mode, num_tokens=num_tokens, num_sequences=num_sequences, width=7
    )
    total.backward()

    assert total.item() == 0
    assert logprobs.grad is not None
    assert logprobs.grad.abs().max().item() == 0


@pytest.mark.parametrize("mode", MODES)
def test_masked_rows_and_columns_change_nothing(responses, mode):
    losses = torch.nn.functional.pad(responses.logprobs, (0, 2, 0, 3), value=NAN)
    mask = torch.nn.functional.pad(responses.mask, (0, 2, 0, 3))

    padded = aggregate(losses, mask=mask, mode=mode, **counts(responses.mask))

    assert_close(padded, aggregate(responses.logprobs, mask=responses.mask, mode=mode, **counts(responses.mask)))


def test_the_norm_needs_a_width_and_an_unknown_mode_is_refused():
    losses, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)

    with pytest.raises(AssertionError, match="needs a width"):
        aggregate(losses, mask=mask, mode="seq-mean-token-sum-norm", num_tokens=1, num_sequences=1)
    with pytest.raises(AssertionError, match="mean-of-means"):
        aggregate(losses, mask=mask, mode="mean-of-means", num_tokens=1, num_sequences=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_finite_differences(responses, mode):
    logprobs = responses.logprobs.clone().requires_grad_()

    def total(logprobs: Tensor) -> Tensor:
        losses = policy_loss(responses, logprobs).losses
        return aggregate(losses, mask=responses.mask, mode=mode, **counts(responses.mask))

    assert torch.autograd.gradcheck(total, (logprobs,))


@pytest.mark.parametrize("mode", MODES)
def test_matches_the_golden_aggregations(golden, mode):
    total = aggregate(golden.input("advantages"), mask=golden.mask, mode=mode, **counts(golden.mask))

    assert_close(total, golden.output("aggregate", mode), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("run", "mode", "clip_high"),
    [
        ("vanilla", "token-mean", 0.2),
        ("vanilla clip_low=0.2 clip_high=0.28", "token-mean", 0.28),
        ("vanilla token-sum", "token-sum", 0.2),
        ("vanilla seq-mean-token-sum", "seq-mean-token-sum", 0.2),
        ("vanilla seq-mean-token-mean", "seq-mean-token-mean", 0.2),
        ("vanilla seq-mean-token-sum-norm", "seq-mean-token-sum-norm", 0.2),
    ],
)
def test_matches_the_golden_policy_loss(golden, run, mode, clip_high):
    logprobs = golden.input("logprobs").requires_grad_()
    denominators = counts(golden.mask)

    loss = ppo_clip_loss(
        logprobs=logprobs,
        old_logprobs=golden.input("old_logprobs"),
        advantages=golden.input("advantages"),
        response_mask=golden.mask,
        clip_low=0.2,
        clip_high=clip_high,
        clip_dual=3.0,
    )
    total = aggregate(loss.losses, mask=golden.mask, mode=mode, **denominators)
    total.backward()

    assert_close(total.detach(), golden.output("policy_loss", run, "loss"), atol=1e-6, rtol=0)
    assert_close(logprobs.grad, golden.output("policy_loss", run, "grad_log_prob"), atol=1e-6, rtol=0)
    metrics = golden.numbers["policy_loss"][run]["metrics"]
    num_tokens = denominators["num_tokens"]
    assert loss.num_clipped.item() / num_tokens == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)
    assert loss.num_dual_clipped.item() / num_tokens == pytest.approx(metrics["actor/pg_clipfrac_lower"], abs=1e-6)
    assert loss.sum_kl.item() / num_tokens == pytest.approx(metrics["actor/ppo_kl"], abs=1e-6)
