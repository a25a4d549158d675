"""Metrics for TensorBoard, when its package is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rl_compat.tracking.types import Destination, Tracker

FOLDER = "tensorboard"
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


def open_tensorboard(destination: Destination, *, writer_module: str = WRITER_MODULE) -> Tracker | None:
    """A tracker that writes to a subfolder and hides what was written there after the resumed step.

    Returns None after a warning if the package cannot be used.
    """
    try:
        writer_class = importlib.import_module(writer_module).SummaryWriter
    except (ImportError, AttributeError, TypeError) as error:  # the last two: an incompatible protobuf
        destination.warn(f"TensorBoard cannot be used and is skipped ({error}); `pip install tensorboard` provides it")
        return None
    folder, step = destination.folder / FOLDER, destination.resume_step
    return TensorBoardTracker(writer_class(log_dir=str(folder), purge_step=step + 1 if step else 0))
