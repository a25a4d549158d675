"""Losses on preferences: DPO and its variants, KTO, and Bradley-Terry for reward models.

Log-probabilities are those of whole responses, summed over their tokens. Losses are per pair or per response. Their
mean over a mini-batch is their sum divided by the number of pairs or responses in the whole mini-batch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

import torch
from torch import Tensor
from torch.nn import functional

from rl_compat.algorithms.masking import at_least_float32

PairLoss = Literal["sigmoid", "ipo", "hinge"]


class PreferenceLoss(NamedTuple):
    """Losses [P] of pairs, and the implicit rewards: beta times the log-ratios to the reference, [P] detached."""

    losses: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor


class VerdictLoss(NamedTuple):
    """Losses [N] of single responses, and beta times their log-ratios to the reference, [N] detached."""

    losses: Tensor
    rewards: Tensor


def dpo_loss(
    *,
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor | None,
    ref_rejected_logprobs: Tensor | None,
    beta: float,
    loss: PairLoss = "sigmoid",
    label_smoothing: float = 0.0,
    chosen_lengths: Tensor | None = None,
    rejected_lengths: Tensor | None = None,
) -> PreferenceLoss:
    """The DPO loss of pairs of a chosen and a rejected response, all [P].

    With h = (chosen - ref_chosen) - (rejected - ref_rejected) in log-probabilities:
    `sigmoid` is -log sigmoid(beta h) (Rafailov et al. 2023, "DPO", eq. 7), with label_smoothing e
    -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h) (Mitchell 2023, "conservative DPO");
    `ipo` is (h - 1 / (2 beta))^2 (Azar et al. 2023, eq. 17);
    `hinge` is max(0, 1 - beta h) (Zhao et al. 2023, "SLiC-HF").

    Without a reference its log-probabilities are 0. With the lengths [P] in tokens each log-ratio is divided by the
    length of its response, so that long responses do not weigh more (Lambert et al. 2024, "Tulu 3"). TRL's `ipo` always
    divides.
    """
    assert beta > 0, f"beta is {beta}, must be above 0"
    assert 0 <= label_smoothing < 0.5, f"label_smoothing is {label_smoothing}, must be from 0 to below 0.5"
    assert label_smoothing == 0 or loss == "sigmoid", f"`{loss}` has no label smoothing"
    assert (chosen_lengths is None) == (rejected_lengths is None), "only one of the two lengths is given"
    chosen = _log_ratio(chosen_logprobs, ref_chosen_logprobs)
    rejected = _log_ratio(rejected_logprobs, ref_rejected_logprobs)
    rewards = beta * chosen.detach(), beta * rejected.detach()
    if chosen_lengths is not None and rejected_lengths is not None:
        chosen, rejected = chosen / chosen_lengths.clamp(min=1), rejected / rejected_lengths.clamp(min=1)
    margin = chosen - rejected
    match loss:
        case "sigmoid":
            losses = -(1 - label_smoothing) * functional.logsigmoid(beta * margin)
            losses = losses - label_smoothing * functional.logsigmoid(-beta * margin)
        case "ipo":
            losses = (margin - 1 / (2 * beta)).square()
        case "hinge":
            losses = (1 - beta * margin).clamp(min=0)
        case _:
            assert_never(loss)
    return PreferenceLoss(losses, *rewards)


def kto_loss(
    *,
    logprobs: Tensor,
    ref_logprobs: Tensor | None,
    desirable: Tensor,
    reference_point: Tensor,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> VerdictLoss:
    """The KTO loss of responses labelled as desirable or not (Ethayarajh et al. 2024, eq. 8), [N].

    With r = logprobs - ref_logprobs and z the reference point, a scalar or [N]: desirable_weight (1 - sigmoid(beta (r -
    z))) where desirable [N] bool, else undesirable_weight (1 - sigmoid(beta (z - r))). z has no gradient. Without a
    reference its log-probabilities are 0.
    """
    assert beta > 0, f"beta is {beta}, must be above 0"
    log_ratio = _log_ratio(logprobs, ref_logprobs)
    gain = beta * (log_ratio - reference_point.detach())
    losses = torch.where(desirable, desirable_weight * torch.sigmoid(-gain), undesirable_weight * torch.sigmoid(gain))
    return VerdictLoss(losses, beta * log_ratio.detach())


def kto_reference_point(mismatched: Tensor) -> Tensor:
    """An estimate of KL(policy || reference): the mean log-ratio [N] of mismatched responses, at least 0, a scalar.

    They are the log-ratios to the reference of each prompt with the response of another row of the mini-batch
    (Ethayarajh et al. 2024, section 4.1). Detached.
    """
    return at_least_float32(mismatched).detach().mean().clamp(min=0)


def bradley_terry_loss(*, chosen_rewards: Tensor, rejected_rewards: Tensor, margins: Tensor | None = None) -> Tensor:
    """-log sigmoid(chosen - rejected - margin) of the rewards [P] of a model (Bradley and Terry 1952), [P].

    The margin [P] is the required difference of a pair (Touvron et al. 2023, "Llama 2", eq. 2), 0 if None.
    """
    difference = at_least_float32(chosen_rewards) - at_least_float32(rejected_rewards)
    return -functional.logsigmoid(difference if margins is None else difference - at_least_float32(margins))


def _log_ratio(logprobs: Tensor, ref_logprobs: Tensor | None) -> Tensor:
    exact = at_least_float32(logprobs)
    return exact if ref_logprobs is None else exact - at_least_float32(ref_logprobs).detach()
