"""The learning rate as a pure function of the optimizer step."""

from __future__ import annotations

import math

from rl_compat.config.types import Schedule


def learning_rate(
    step: float,
    *,
    lr: float,
    schedule: Schedule,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    min_lr_fraction: float = 0.0,
) -> float:
    """The learning rate at optimizer step `step`, counted from 0.

    It rises linearly over `warmup_steps`, is `lr` at step `warmup_steps`, and falls to `lr * min_lr_fraction` at
    step `total_steps`. A resumed run with another total continues on the new curve, without a second warm-up.
    """
    if step < warmup_steps:
        return lr * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return lr
    assert total_steps is not None, f"a {schedule} schedule needs the total number of steps"
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    shape = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return lr * (min_lr_fraction + (1.0 - min_lr_fraction) * shape)
