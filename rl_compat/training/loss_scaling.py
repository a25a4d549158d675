"""Loss scaling for fp16: a factor on the loss that keeps small gradients above fp16's smallest number."""

from __future__ import annotations

from typing import TypedDict

LOWEST_SCALE = 2.0**-14
HIGHEST_SCALE = 2.0**24


class ScaleState(TypedDict):
    scale: float
    good_steps: int


class LossScaler:
    """A factor that halves when a gradient overflows and doubles after many steps without an overflow.

    A disabled scaler keeps the factor at 1. Unlike `torch.amp.GradScaler` it does not know optimizers, so the same code
    serves optimizers whose parameters live on another device. RL runs are short: the factor starts lower and grows
    sooner than in pre-training.
    """

    def __init__(self, *, enabled: bool, start: float = 2.0**13, growth_interval: int = 200) -> None:
        self.enabled = enabled
        self.scale = start if enabled else 1.0
        self.growth_interval = growth_interval
        self.good_steps = 0

    @property
    def can_lower(self) -> bool:
        return self.enabled and self.scale > LOWEST_SCALE

    def update(self, *, overflowed: bool) -> None:
        """Record whether a gradient overflowed."""
        if not self.enabled:
            return
        if overflowed:
            self.scale, self.good_steps = max(self.scale / 2, LOWEST_SCALE), 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = min(self.scale * 2, HIGHEST_SCALE), 0

    def state(self) -> ScaleState:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: ScaleState) -> None:
        self.scale, self.good_steps = state["scale"], state["good_steps"]
