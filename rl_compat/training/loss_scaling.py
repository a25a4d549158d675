"""Loss scaling for fp16: gradients are computed times a factor that keeps small ones above fp16's smallest number."""

from __future__ import annotations

from typing import TypedDict


class ScaleState(TypedDict):
    scale: float
    good_steps: int


class LossScaler:
    """A factor that halves when a gradient overflows and doubles after many steps without one.

    Switched off, the factor stays 1. Unlike `torch.amp.GradScaler` it knows nothing of optimizers, so that the same
    code serves optimizers whose parameters live on another device; RL runs are short, so it starts lower and grows
    sooner than in pre-training.
    """

    def __init__(self, *, enabled: bool, start: float = 2.0**13, growth_interval: int = 200) -> None:
        self.enabled = enabled
        self.scale = start if enabled else 1.0
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, *, overflowed: bool) -> None:
        """Take note of one optimizer step."""
        if not self.enabled:
            return
        if overflowed:
            self.scale, self.good_steps = max(self.scale / 2, 2.0**-14), 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = min(self.scale * 2, 2.0**24), 0

    def state(self) -> ScaleState:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: ScaleState) -> None:
        self.scale, self.good_steps = state["scale"], state["good_steps"]
