"""The trackers of a run, from their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rl_compat.errors import ConfigError, nearest
from rl_compat.tracking.console import ConsoleTracker
from rl_compat.tracking.jsonl import JsonlTracker
from rl_compat.tracking.tensorboard import open_tensorboard
from rl_compat.tracking.types import Tracker, Warn
from rl_compat.tracking.wandb import open_wandb

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What the trackers of one run have in common."""

    folder: Path
    project: str
    experiment: str
    resume_step: int
    warn: Warn


class Trackers:
    """Several trackers as one. One that fails is left out of the rest of the run, except the JSON lines."""

    def __init__(self, trackers: Iterable[Tracker], *, warn: Warn) -> None:
        self.trackers = list(trackers)
        self._warn = warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step everywhere. Raises OSError when the JSON lines cannot be written."""
        for tracker in tuple(self.trackers):
            try:
                tracker.log(step, metrics)
            except Exception as error:
                if isinstance(tracker, JsonlTracker):
                    raise
                self.trackers.remove(tracker)
                self._warn(f"{_name(tracker)} failed at step {step} and is left out from here on: {error!r}")

    def close(self) -> None:
        """Close all of them, whatever one of them says."""
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"{_name(tracker)} could not be closed: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def build_trackers(
    names: Sequence[str],
    *,
    folder: Path,
    project: str,
    experiment: str,
    resume_step: int,
    warn: Warn = _print_warning,
) -> Trackers:
    """The named trackers, writing below the folder; to be called before a model is loaded.

    resume_step is the last step that is done, 0 for a new run: what was written after it is dropped. A tracker that
    cannot be used is left out with one warning, and when that is W&B the JSON lines are kept in its place.
    Raises ConfigError for an unknown name.
    """
    for name in names:
        if name not in _OPENERS:
            close = nearest(name, _OPENERS)
            known = ", ".join(f"`{other}`" for other in _OPENERS)
            raise ConfigError(
                f"there is no tracker `{name}`", hint=f"did you mean `{close}`" if close else f"use some of {known}"
            )
    folder.mkdir(parents=True, exist_ok=True)
    destination = Destination(folder=folder, project=project, experiment=experiment, resume_step=resume_step, warn=warn)
    wanted = dict.fromkeys(names)
    opened = {name: _OPENERS[name](destination) for name in wanted}
    if "wandb" in opened and opened["wandb"] is None and "jsonl" not in opened:
        opened["jsonl"] = _open_jsonl(destination)
    return Trackers((tracker for tracker in opened.values() if tracker is not None), warn=warn)


def _open_console(destination: Destination) -> Tracker:
    return ConsoleTracker()


def _open_jsonl(destination: Destination) -> Tracker:
    tracker = JsonlTracker(destination.folder / METRICS_FILE)
    tracker.resume_at(destination.resume_step)
    return tracker


def _open_tensorboard(destination: Destination) -> Tracker | None:
    return open_tensorboard(
        folder=destination.folder / TENSORBOARD_FOLDER, resume_step=destination.resume_step, warn=destination.warn
    )


def _open_wandb(destination: Destination) -> Tracker | None:
    return open_wandb(
        folder=destination.folder,
        project=destination.project,
        experiment=destination.experiment,
        resume_step=destination.resume_step,
        warn=destination.warn,
    )


_OPENERS: Mapping[str, Callable[[Destination], Tracker | None]] = {
    "console": _open_console,
    "jsonl": _open_jsonl,
    "tensorboard": _open_tensorboard,
    "wandb": _open_wandb,
}


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__.removesuffix("Tracker")
