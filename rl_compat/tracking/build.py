"""Build the trackers of a run from their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rl_compat.errors import ConfigError, did_you_mean, quoted
from rl_compat.tracking.console import ConsoleTracker
from rl_compat.tracking.jsonl import METRICS_FILE, JsonlTracker, forget_after
from rl_compat.tracking.tensorboard import open_tensorboard
from rl_compat.tracking.types import Destination, Tracker, Warn
from rl_compat.tracking.wandb import open_wandb


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


def _open_console(destination: Destination) -> Tracker:
    return ConsoleTracker()


def _open_jsonl(destination: Destination) -> Tracker:
    forget_after(destination.resume_step, destination.folder / METRICS_FILE)
    return JsonlTracker(destination.folder / METRICS_FILE)


_OPENERS: Mapping[str, Callable[[Destination], Tracker | None]] = {
    "console": _open_console,
    "jsonl": _open_jsonl,
    "tensorboard": open_tensorboard,
    "wandb": open_wandb,
}


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__.removesuffix("Tracker")
