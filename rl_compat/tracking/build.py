"""The trackers of a run by name: the terminal, TensorBoard, and those of the other modules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from rl_compat.errors import ConfigError, did_you_mean, quoted
from rl_compat.tracking.jsonl import METRICS_FILE, JsonlTracker, forget_after
from rl_compat.tracking.types import Destination, Tracker, Warn
from rl_compat.tracking.wandb import open_wandb

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


SHOWN = re.compile(
    r"""
      critic/score/mean | cost/score/mean | cost/multiplier
    | train/loss | rewards/(margins|accuracies) | actor/(pg_loss|entropy|kl_loss|ppo_kl|pg_clipfrac|lr|grad_norm)
    | actor/reward_kl_penalty | critic/(vf_loss|vf_explained_var)
    | response_length/(mean|clip_ratio|empty_ratio) | training/(zero_spread_groups|rollout_probs_diff_max)
    | val-core/.+/(mean|low95|high95)@1 | val-aux/response_length/mean | eval/.+
    | actor/perf/max_memory_allocated_gb | perf/throughput | timing_s/(gen|step|testing)
    """,
    re.VERBOSE,
)
"names of metrics, others are in the other trackers"
IF_NOT_ZERO = re.compile(r"reward/(timeouts|errors|unscored) | \w+/skipped_steps", re.VERBOSE)


class ConsoleTracker:
    """Prints `step:N - key:value - key:value`, with a part of the metrics."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        "`sys.stdout` at the time of each line if None, so that a progress bar can stay below the lines"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = {
            name: value
            for name, value in metrics.items()
            if SHOWN.fullmatch(name) or (value and IF_NOT_ZERO.fullmatch(name))
        }
        print(format_line(step, shown), file=self._stream or sys.stdout, flush=True)

    def close(self) -> None:
        """Nothing to close."""


def format_line(step: int, metrics: Mapping[str, float]) -> str:
    """The line of a step: fields between ` - `, name and value between `:`."""
    return " - ".join([f"step:{step}", *(f"{name}:{_short(value)}" for name, value in metrics.items())])


def _short(value: float) -> str:
    """Whole numbers in full, others with five significant digits; `float` reads all of them."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return str(int(value)) if isinstance(value, int) else f"{value:.1f}"
    return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.1f}"


class Trackers:
    """Several trackers as one. A tracker that fails is dropped for the rest of the run, except the JSON lines."""

    def __init__(self, trackers: Iterable[Tracker], *, warn: Warn) -> None:
        self.trackers = list(trackers)
        self._warn = warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step to all trackers. Raises OSError if the JSON lines cannot be written."""
        for tracker in tuple(self.trackers):
            try:
                tracker.log(step, metrics)
            except Exception as error:
                if isinstance(tracker, JsonlTracker):
                    raise
                self.trackers.remove(tracker)
                self._warn(f"{_name(tracker)} failed at step {step} and is not used from here on: {error!r}")

    def close(self) -> None:
        """Close all trackers, even if closing one fails."""
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"{_name(tracker)} could not be closed: {error!r}")


def build_trackers(names: Sequence[str], destination: Destination) -> Trackers:
    """The named trackers; to be called before a model is loaded.

    A tracker that cannot be used is left out with one warning; if it is W&B, the JSON lines replace it. Raises
    ConfigError for an unknown name.
    """
    for name in names:
        if name not in _OPENERS:
            hint = did_you_mean(name, _OPENERS, f"use some of {quoted(_OPENERS)}")
            raise ConfigError(f"there is no tracker `{name}`", hint=hint)
    destination.folder.mkdir(parents=True, exist_ok=True)
    opened = {name: _OPENERS[name](destination) for name in dict.fromkeys(names)}
    if "wandb" in opened and opened["wandb"] is None and "jsonl" not in opened:
        opened["jsonl"] = _open_jsonl(destination)
    return Trackers((tracker for tracker in opened.values() if tracker is not None), warn=destination.warn)


def _open_jsonl(destination: Destination) -> Tracker:
    forget_after(destination.resume_step, destination.folder / METRICS_FILE)
    return JsonlTracker(destination.folder / METRICS_FILE)


_OPENERS: Mapping[str, Callable[[Destination], Tracker | None]] = {
    "console": lambda destination: ConsoleTracker(),
    "jsonl": _open_jsonl,
    "tensorboard": open_tensorboard,
    "wandb": open_wandb,
}


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__.removesuffix("Tracker")
