"""Metrics for TensorBoard, when its package is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_compat.tracking.types import Tracker, Warn

WRITER_MODULE = "torch.utils.tensorboard"


class TensorBoardTracker:
    """Writes each metric as a scalar."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_tensorboard(
    *, folder: Path, resume_step: int, warn: Warn, writer_module: str = WRITER_MODULE
) -> Tracker | None:
    """A tracker that writes to the folder and hides what was written there after the resumed step.

    Without a usable package: one warning and None.
    """
    try:
        writer_class = importlib.import_module(writer_module).SummaryWriter
    except (ImportError, AttributeError, TypeError) as error:  # the last two: a protobuf that does not fit
        warn(f"TensorBoard cannot be used and is left out ({error}); `pip install tensorboard` provides it")
        return None
    return TensorBoardTracker(writer_class(log_dir=str(folder), purge_step=resume_step + 1 if resume_step else 0))
