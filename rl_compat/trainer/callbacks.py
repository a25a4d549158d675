"""Callbacks: a user's code at the steps, validations and checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path


class Callback:
    """Base class of callbacks; override the methods you need.

    They are called in the training process, between steps. An exception ends the run after its newest finished step
    is saved.
    """

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """After each step, with its metrics. Returning False ends the run after this step."""

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each validation, with its metrics; step 0 is the one before training."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """After a checkpoint is complete in `folder`."""


StepFunction = Callable[[int, Mapping[str, float]], bool | None]
"what `Callback.on_step` does, as a function"


class StepCallback(Callback):
    """A function as a callback."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        return self._function(step, metrics)
