"""The Lagrange multiplier of a cost constraint: it rises while the cost is above the limit and falls below it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rl_compat.algorithms.masking import at_least_float32


@dataclass(slots=True, kw_only=True)
class LagrangeMultiplier:
    """The multiplier lambda of PPO-Lagrangian, stored as its logarithm (Dai et al. 2023, "Safe RLHF", section 3.3)."""

    limit: float
    "maximum mean cost of a response"
    learning_rate: float
    initial: float
    "above 0"
    maximum: float = math.inf
    log_multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        assert 0 < self.initial <= self.maximum, f"the multiplier starts at {self.initial}, must be in (0, maximum]"
        assert self.learning_rate >= 0, f"the learning rate is {self.learning_rate}, must not be below 0"
        self.log_multiplier = math.log(self.initial)

    @property
    def value(self) -> float:
        return math.exp(self.log_multiplier)

    def update(self, mean_cost: float) -> None:
        """log lambda += learning_rate (mean_cost - limit) lambda, then lambda = min(lambda, maximum).

        This is one step of gradient ascent on lambda (mean_cost - limit) in log lambda. A mean cost that is not finite
        has no effect.
        """
        if not math.isfinite(mean_cost):
            return
        step = self.learning_rate * (mean_cost - self.limit) * self.value
        self.log_multiplier = min(self.log_multiplier + step, math.log(self.maximum))

    def state_dict(self) -> dict[str, float]:
        """The state in a checkpoint."""
        return {"log_multiplier": self.log_multiplier}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of a checkpoint, with lambda at most the current maximum."""
        self.log_multiplier = min(state["log_multiplier"], math.log(self.maximum))


def constrained_advantages(reward_advantages: Tensor, cost_advantages: Tensor, *, multiplier: float) -> Tensor:
    """(A_reward - lambda A_cost) / (1 + lambda) of two advantages of the same shape (Dai et al. 2023, "Safe RLHF").

    The division keeps the scale of the update constant as the multiplier grows.
    """
    reward, cost = at_least_float32(reward_advantages), at_least_float32(cost_advantages)
    return (reward - multiplier * cost) / (1 + multiplier)
