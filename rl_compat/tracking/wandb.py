"""Metrics for W&B, online or as files for `wandb sync`."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_compat.tracking.types import Destination, Tracker
from rl_compat.tracking.wandb_mode import can_connect, choose_mode

INIT_SECONDS = 20.0
FINISH_SECONDS = 60.0
PROMPT_SECONDS = 1.0
RUN_ID_FILE = "wandb_run_id.txt"


class WandbTracker:
    """Writes to a W&B run. Steps that the run has from before a resume are not changed."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self._run.starting_step:
            self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(
    destination: Destination,
    *,
    environ: Mapping[str, str] = os.environ,
    package: str = "wandb",
    connects: Callable[[str, int], bool] = can_connect,
) -> Tracker | None:
    """A tracker of the W&B run of this folder: online if possible, else in files in the folder, with a warning.

    Returns None after a warning if the package is missing, disabled or does not start.
    """
    folder, warn = destination.folder, destination.warn
    try:
        wandb = importlib.import_module(package)
    except ImportError as error:
        warn(f"W&B is skipped because its package cannot be imported ({error}); `pip install wandb` provides it")
        return None
    mode = choose_mode(environ, default_url=wandb.Settings().base_url, working_folder=Path.cwd(), connects=connects)
    if mode.name == "disabled":
        warn(f"W&B is skipped because {mode.reason}")
        return None
    try:
        run = wandb.init(
            project=destination.project,
            name=destination.experiment,
            dir=str(folder),
            id=_run_id(folder, new=destination.resume_step == 0),
            resume="allow",
            mode=mode.name,
            settings=_settings(wandb, silent=mode.name == "offline"),
        )
    except (wandb.errors.Error, ValueError, OSError) as error:
        warn(f"W&B is skipped because it did not start: {str(error).strip().splitlines()[0]}")
        return None
    if mode.name == "offline":
        warn(f"W&B logs this run to `{folder / 'wandb'}` because {mode.reason}; `wandb sync` uploads it later")
    return WandbTracker(run)


def _run_id(folder: Path, *, new: bool) -> str:
    """The identity under which a resumed run continues, kept in the folder."""
    path = folder / RUN_ID_FILE
    if new or not path.exists():
        path.write_text(uuid.uuid4().hex[:8] + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _settings(wandb: Any, *, silent: bool) -> Any:
    """Settings with short timeouts that this version of the package has, so that no prompt blocks the run."""
    waits = {
        "init_timeout": INIT_SECONDS,
        "login_timeout": PROMPT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
    }
    known = {name: seconds for name, seconds in waits.items() if name in wandb.Settings.model_fields}
    return wandb.Settings(silent=silent, **known)
