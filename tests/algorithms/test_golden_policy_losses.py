"""The policy losses against what verl returned for the same inputs."""

from __future__ import annotations

import pytest
import torch
from fakes.part_settings import loss_numbers
from torch.testing import assert_close

from rl_compat.algorithms.losses.policy import POLICY_LOSSES, aggregate
from rl_compat.algorithms.losses.types import PolicyLossInputs

OTHER_NAMES = {"vanilla": "ppo_clip"}
HIGHER = "vanilla clip_low=0.2 clip_high=0.28"
MODES = ("token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
RUNS = {
    **{name: (OTHER_NAMES.get(name, name), None) for name in ("vanilla", *POLICY_LOSSES)},
    **{f"vanilla {mode}": ("ppo_clip", mode) for mode in MODES},
    HIGHER: ("ppo_clip", None),
}
NOT_GOLDEN = {
    "ppo_clip": "called vanilla there",
    "reinforce": "the same function as gpg",
    "clip_cov": "random there; its parts are checked by hand",
}


def test_every_golden_run_is_compared(golden):
    assert set(golden.numbers["policy_loss"]) == set(RUNS) - set(NOT_GOLDEN)


@pytest.mark.parametrize("run", sorted(set(RUNS) - set(NOT_GOLDEN)))
def test_matches_loss_gradient_and_metrics(golden, run):
    name, mode = RUNS[run]
    rule, logprobs = POLICY_LOSSES[name], golden.input("logprobs").requires_grad_()
    inputs = PolicyLossInputs(
        logprobs=logprobs,
        old_logprobs=golden.input("old_logprobs"),
        advantages=golden.input("advantages"),
        response_mask=golden.mask,
        numbers=loss_numbers(clip_high=0.28 if run == HIGHER else 0.2),
    )
    if rule.select is not None:
        inputs = PolicyLossInputs(
            **{field: getattr(inputs, field) for field in inputs.__slots__ if field != "selection"},
            selection=rule.select(inputs, 0),
        )

    loss = rule.loss(inputs)
    total = aggregate(
        loss.losses, mask=golden.mask, mode=mode or rule.aggregation, num_tokens=22, num_sequences=6, width=5
    )
    total.backward()

    assert_close(total.detach(), golden.output("policy_loss", run, "loss"), atol=1e-6, rtol=0)
    expected = torch.tensor(golden.numbers["policy_loss"][run]["grad_log_prob"])
    assert_close(logprobs.grad, expected, atol=1e-6, rtol=0)
    sums = {
        "actor/pg_clipfrac": loss.num_clipped,
        "actor/pg_clipfrac_lower": loss.num_clipped_lower,
        "actor/ppo_kl": loss.sum_kl,
    }
    for metric, value in golden.numbers["policy_loss"][run]["metrics"].items():
        assert sums[metric].item() / 22 == pytest.approx(value, abs=1e-6)
