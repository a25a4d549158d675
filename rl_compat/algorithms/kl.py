"""Estimates of KL(policy || reference) from sampled tokens, and the controllers of its coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from rl_compat.algorithms.precision import at_least_float32
from rl_compat.algorithms.table import KLKind

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0
MAX_RELATIVE_ERROR = 0.2


def kl_estimate(kind: KLKind, *, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL of each token [B, T] from its log-probabilities [B, T] under the policy and the reference, in float32.

    With r = ref_logprobs - logprobs: k1 is -r, abs is |r|, k2 is r^2 / 2 and k3 is exp(r) - r - 1
    (Schulman 2020, "Approximating KL divergence"). For k3 the log-ratio is held within 20 before the exponential and
    the result within 10, so values and gradients stay finite; beyond those bounds the gradient is 0.

    A kind with a `+` has the value of that estimate and the gradient of k2, -r: of the four it is the one whose mean
    over samples of the policy is the gradient of the divergence (Tang and Munos 2025, "On a few pitfalls in KL
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
            raise AssertionError(f"`{kind}` is no estimate of the KL")


class KLController(Protocol):
    """Holds the coefficient of the KL penalty and moves it after each step."""

    coef: float

    def update(self, *, kl: float, num_sequences: int) -> None:
        """Take in the mean KL of a step of so many sequences."""

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from what a checkpoint kept."""


@dataclass(slots=True, kw_only=True)
class FixedKLController:
    """A coefficient that stays as configured, also when a run resumes."""

    coef: float

    def update(self, *, kl: float, num_sequences: int) -> None:
        """Change nothing."""

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Change nothing: the configured coefficient holds."""


@dataclass(slots=True, kw_only=True)
class AdaptiveKLController:
    """A coefficient that grows while the KL is above the target and shrinks below it (Ziegler et al. 2019, 2.2)."""

    coef: float
    target: float
    horizon: int

    def __post_init__(self) -> None:
        assert self.target > 0
        assert self.horizon > 0

    def update(self, *, kl: float, num_sequences: int) -> None:
        """coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * num_sequences / horizon. A KL that is NaN changes nothing."""
        if math.isnan(kl):
            return
        error = min(max(kl / self.target - 1, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
        self.coef *= 1 + error * num_sequences / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.coef = state["coef"]


def make_kl_controller(kind: Literal["fixed", "adaptive"], *, coef: float, target: float, horizon: int) -> KLController:
    """The controller of that kind. The fixed one needs neither target nor horizon."""
    if kind == "fixed":
        return FixedKLController(coef=coef)
    return AdaptiveKLController(coef=coef, target=target, horizon=horizon)
