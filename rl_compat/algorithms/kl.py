"""Estimators of KL(policy || reference) from sampled tokens, and the controller of the KL coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.algorithms.masking import MAX_LOG_RATIO, at_least_float32
from rl_compat.algorithms.table import KLKind

MAX_K3 = 10.0
MAX_RELATIVE_ERROR = 0.2


def kl_estimate(kind: KLKind, *, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The KL estimate per token [B, T] from log-probabilities [B, T] under the policy and the reference, in float32.

    With r = ref_logprobs - logprobs: k1 is -r, abs is |r|, k2 is r^2 / 2 and k3 is exp(r) - r - 1
    (Schulman 2020, "Approximating KL divergence"). For k3 the log-ratio is clamped to [-20, 20] before the exponential
    and the result to [-10, 10], so that values and gradients are finite; beyond these bounds the gradient is 0.

    A kind with a `+` has the value of that estimator and the gradient of k2, -r. Of the four, only k2 has a gradient
    whose mean over samples of the policy is the gradient of the KL (Tang and Munos 2025, "On a few pitfalls in KL
    divergence gradient estimation for RL").
    """
    log_ratio = at_least_float32(ref_logprobs) - at_least_float32(logprobs)
    if not kind.endswith("+"):
        return _estimate(kind, log_ratio)
    squared = 0.5 * log_ratio.square()
    return squared - squared.detach() + _estimate(kind.removesuffix("+"), log_ratio.detach())


def _estimate(kind: str, log_ratio: Tensor) -> Tensor:
    match kind:
        case "k1":
            return -log_ratio
        case "abs":
            return log_ratio.abs()
        case "k2":
            return 0.5 * log_ratio.square()
        case "k3":
            bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            return (torch.expm1(bounded) - bounded).clamp(-MAX_K3, MAX_K3)
        case _:
            raise AssertionError(f"unknown KL estimator `{kind}`")


@dataclass(slots=True, kw_only=True)
class KLController:
    """The coefficient of the KL penalty: constant, or moved towards a target KL (Ziegler et al. 2019, 2.2)."""

    coef: float
    target: float | None = None
    "KL per token: the coefficient rises while the KL is above it and falls below it; None is a constant coefficient"
    horizon: int = 1

    def update(self, *, kl: float, num_sequences: int) -> None:
        """After a step: coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * num_sequences / horizon.

        A KL of NaN has no effect.
        """
        if self.target is not None and not math.isnan(kl):
            error = min(max(kl / self.target - 1, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
            self.coef *= 1 + error * num_sequences / self.horizon

    def state_dict(self) -> dict[str, float]:
        """The state in a checkpoint."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of a checkpoint. A constant coefficient keeps the configured value."""
        if self.target is not None:
            self.coef = state["coef"]
