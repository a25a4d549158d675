"""What holds for every row of the table of policy losses."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from algorithms.loss_formulas import FORMULAS, responses_of
from fakes.part_settings import loss_numbers
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.losses.policy import POLICY_LOSSES, aggregate
from rl_compat.algorithms.losses.types import PolicyLoss, PolicyLossInputs, PolicyLossNumbers
from rl_compat.algorithms.table import LOSS_READS

NAN = float("nan")
NUMBERS = loss_numbers(
    clip_low=0.2,
    clip_high=0.28,
    clip_dual=1.5,
    clip_cov_fraction=0.2,
    clip_cov_low=0.05,
    kl_cov_fraction=0.2,
    kl_cov_coef=0.7,
    dro_beta=0.3,
)


@pytest.fixture(params=POLICY_LOSSES)
def name(request) -> str:
    return request.param


@pytest.fixture
def inputs(responses, name) -> PolicyLossInputs:
    """Log-probabilities of 0.001 to 0.99 and ratios from 0.1 to 7, with what the loss selects."""
    logprobs = -(responses.logprobs.abs() + 0.01)
    inputs = PolicyLossInputs(
        logprobs=logprobs,
        old_logprobs=(logprobs + 0.6 * responses.old_logprobs).clamp(max=-0.005),
        advantages=responses.advantages,
        response_mask=responses.mask,
        numbers=NUMBERS,
    )
    select = POLICY_LOSSES[name].select
    return inputs if select is None else replace(inputs, selection=select(inputs, 7))


def total_of(name: str, inputs: PolicyLossInputs, loss: PolicyLoss, whole: Tensor | None = None) -> Tensor:
    """The scalar by the loss's own aggregation, with the denominators of the whole mask."""
    whole = inputs.response_mask if whole is None else whole
    return aggregate(
        loss.losses,
        mask=inputs.response_mask,
        mode=POLICY_LOSSES[name].aggregation,
        num_tokens=int(whole.sum()),
        num_sequences=int(whole.any(1).sum()),
    )


def measured(name: str, inputs: PolicyLossInputs, whole: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Total, the three sums, and the gradient in the log-probabilities."""
    logprobs = inputs.logprobs.clone().requires_grad_()
    loss = POLICY_LOSSES[name].loss(replace(inputs, logprobs=logprobs))
    total = total_of(name, inputs, loss, whole)
    (gradient,) = torch.autograd.grad(total, logprobs)
    return total.detach(), torch.stack(list(loss[1:])), gradient


def on_tensors(inputs: PolicyLossInputs, change) -> PolicyLossInputs:
    tensors = {f.name: getattr(inputs, f.name) for f in fields(inputs) if f.name != "numbers"}
    return replace(inputs, **{key: None if x is None else change(x) for key, x in tensors.items()})


@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradient_are_those_of_the_formula(name, inputs, weighted):
    """The formula as a loop over tokens, its gradient by finite differences."""
    if weighted:
        inputs = replace(inputs, weights=inputs.advantages.flip(0).abs() + 0.1)
    rows = responses_of(inputs)
    per_sequence = POLICY_LOSSES[name].aggregation == "seq-mean-token-mean"

    def share(row: int) -> float:
        return 1 / (len(rows) * len(rows[row][1])) if per_sequence else 1 / sum(len(columns) for _, columns, _ in rows)

    def of_row(row: int, x: list[float]) -> float:
        return sum(share(row) * FORMULAS[name](rows[row][2], t, x) for t in range(len(x)))

    expected = torch.zeros_like(inputs.logprobs)
    for row, (b, columns, response) in enumerate(rows):
        for t, column in enumerate(columns):
            up, down = list(response.logprobs), list(response.logprobs)
            up[t], down[t] = up[t] + 1e-6, down[t] - 1e-6
            expected[b, column] = (of_row(row, up) - of_row(row, down)) / 2e-6

    total, _, gradient = measured(name, inputs)

    assert total.item() == pytest.approx(sum(of_row(row, rows[row][2].logprobs) for row in range(len(rows))))
    assert_close(gradient, expected, atol=1e-8, rtol=1e-5)
    assert gradient.abs().max().item() > 1e-3


@pytest.mark.parametrize("name", ["ppo_clip", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "reinforce"])
def test_losses_without_a_stopped_gradient_pass_gradcheck(name, inputs):
    logprobs = inputs.logprobs.clone().requires_grad_()

    assert torch.autograd.gradcheck(lambda x: POLICY_LOSSES[name].loss(replace(inputs, logprobs=x)).losses, (logprobs,))


@pytest.mark.parametrize("filler", [0.0, 1e4, NAN, -float("inf")])
def test_padding_changes_neither_loss_nor_gradient(name, inputs, filler):
    """A-ALG-07."""
    mask, weights = inputs.response_mask, inputs.advantages.abs() + 0.1

    def filled(filler: float) -> PolicyLossInputs:
        padded = on_tensors(
            replace(inputs, weights=weights), lambda x: x if x.dtype == torch.bool else torch.where(mask, x, filler)
        )
        return replace(padded, selection=None if inputs.selection is None else inputs.selection | ~mask)

    for result, expected in zip(measured(name, filled(filler)), measured(name, filled(-1.0)), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("parts", [[[0], [1], [2], [3], [4], [5]], [[5, 0, 3, 1], [4, 2]], [[2, 5, 4, 1, 0, 3]]])
def test_splitting_and_permuting_change_nothing(name, inputs, parts):
    """A-ALG-05: what is selected was selected from the whole mini-batch."""
    total, sums, gradient = measured(name, inputs)

    results = [measured(name, on_tensors(inputs, lambda x: x[rows]), inputs.response_mask) for rows in parts]  # noqa: B023

    assert_close(sum(part[0] for part in results), total)
    assert_close(sum(part[1] for part in results), sums)
    order = torch.tensor([row for rows in parts for row in rows])
    assert_close(torch.cat([part[2] for part in results]), gradient[order])


def test_masked_rows_and_columns_change_nothing(name, inputs):
    wide = on_tensors(inputs, lambda x: torch.nn.functional.pad(x, (0, 2, 0, 3), value=0))

    for result, expected in zip(measured(name, wide), measured(name, inputs), strict=True):
        assert_close(result[:6, :7] if result.dim() == 2 else result, expected)


def test_everything_masked_is_a_loss_of_zero_that_can_run_backward(name, inputs):
    """A-ALG-13."""
    inputs = replace(inputs, response_mask=torch.zeros_like(inputs.response_mask))
    select = POLICY_LOSSES[name].select
    inputs = inputs if select is None else replace(inputs, selection=select(inputs, 0))

    total, sums, gradient = measured(name, inputs)

    assert (total.item(), sums.tolist(), gradient.abs().max().item()) == (0, [0, 0, 0], 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_extreme_ratios_leave_loss_and_gradient_finite(name, dtype):
    inputs = PolicyLossInputs(
        logprobs=torch.tensor([[0.0, -500.0, 0.0, -500.0], [-500.0, 0.0, -1e4, -1e4]], dtype=dtype),
        old_logprobs=torch.tensor([[-500.0, 0.0, -500.0, 0.0], [0.0, -500.0, -1e4, 0.0]], dtype=dtype),
        advantages=torch.tensor([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 0.0, -2.0]], dtype=dtype),
        response_mask=torch.ones(2, 4, dtype=torch.bool),
        selection=torch.tensor([[True, False] * 2] * 2),
        numbers=replace(NUMBERS, clip_dual=None if dtype == torch.float32 else 3.0),
    )

    total, sums, gradient = measured(name, inputs)

    assert total.dtype == torch.float32
    assert total.isfinite()
    assert sums.isfinite().all()
    assert gradient.isfinite().all()


def test_weights_multiply_the_loss_of_each_response(name, inputs):
    doubled = replace(inputs, weights=torch.full_like(inputs.logprobs, 2.0))

    total, sums, gradient = measured(name, doubled)

    once = measured(name, inputs)
    assert_close(total, 2 * once[0])
    assert_close(sums, once[1])
    assert_close(gradient, 2 * once[2])


def test_the_first_update_has_the_gradient_of_reinforce(name, inputs):
    """At ratio 1 every loss that is a surrogate has it, per token; the covariance losses where nothing is selected."""
    equal = replace(inputs, old_logprobs=inputs.logprobs, selection=torch.zeros_like(inputs.response_mask))
    if name == "geo_mean":
        equal = replace(equal, advantages=equal.advantages[:, :1].expand(6, 7))

    gradient, expected = measured(name, equal)[2], -equal.advantages.masked_fill(~equal.response_mask, 0)

    if POLICY_LOSSES[name].aggregation == "seq-mean-token-mean":
        expected = expected / equal.response_mask.sum(1).clamp(min=1)[:, None] / 5
    else:
        expected = expected / equal.response_mask.sum()
    assert_close(gradient, expected)


def test_every_number_is_read_by_some_loss():
    read = {key.replace(".", "_") for reads in LOSS_READS.values() for key in reads}
    assert read == {field.name for field in fields(PolicyLossNumbers)}


CHANGED = loss_numbers(
    clip_low=0.05,
    clip_high=0.05,
    clip_dual=1.1,
    sapo_tau_positive=2.0,
    sapo_tau_negative=0.5,
    dro_beta=0.9,
    clip_cov_fraction=0.5,
    clip_cov_low=0.3,
    clip_cov_high=0.5,
    kl_cov_fraction=0.6,
    kl_cov_coef=3.0,
)


@pytest.mark.parametrize("number", [field.name for field in fields(PolicyLossNumbers)])
def test_a_number_matters_exactly_where_it_is_read(name, inputs, number):
    rule = POLICY_LOSSES[name]

    def run(numbers: PolicyLossNumbers) -> Tensor:
        gradients = []
        for sign in (1, -1):
            changed = replace(inputs, numbers=numbers, advantages=sign * inputs.advantages)
            if rule.select is not None:
                changed = replace(changed, selection=rule.select(changed, 7))
            gradients.append(measured(name, changed)[2])
        return torch.stack(gradients)

    same = torch.equal(run(NUMBERS), run(replace(NUMBERS, **{number: getattr(CHANGED, number)})))
    assert same == (number not in {key.replace(".", "_") for key in LOSS_READS[name]})


MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


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
def test_masked_rows_and_columns_change_no_aggregate(responses, mode):
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
