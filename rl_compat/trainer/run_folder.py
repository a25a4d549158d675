"""The folder of a run: its settings, plan, metrics, samples and checkpoints, and whether the run can continue."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from rl_compat.config.load import load_config
from rl_compat.config.settings import POOLS
from rl_compat.config.toml_file import to_toml
from rl_compat.config.types import RunConfig
from rl_compat.errors import CheckpointError, ConfigError, RLCompatError
from rl_compat.hardware.recording import save_recording
from rl_compat.hardware.types import Hardware
from rl_compat.models.files.atomic import file_written_whole
from rl_compat.planning.serialize import save_plan
from rl_compat.planning.types import Plan
from rl_compat.replay.record import FOLDER
from rl_compat.tracking.jsonl import METRICS_FILE, is_step, step_of
from rl_compat.tracking.timeline import TIMELINE_FILE
from rl_compat.trainer.checkpoints import CHECKPOINTS, FoundCheckpoint, find_newest, open_checkpoint
from rl_compat.trainer.state import load_run_state

_MAY_CHANGE = {
    "trainer": {
        "num_steps",
        "num_epochs",
        "max_seconds",
        "resume",
        "save_every",
        "keep_checkpoints",
        "validate_every",
        "validate_before",
        "validate_after",
        "num_sample_generations",
        "loggers",
        "project",
        "experiment",
        "output_dir",
    },
    "rollout": {
        "engine",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "gpu_memory_utilization",
        "on_update",
    },
    "reward": {"timeout_seconds"},
    "samples": {"keep", "keep_gib"},
    "data": {"on_change", "streaming"},
}
"settings by section that may change when a run continues, in addition to all of `plan` and the pools"
_MAY_CHANGE_ON_RESTART = {"train_files", "max_train_samples", "mixture_weights", "shuffle", "seed"}
"settings of `data` that may change in addition with `data.on_change=restart`"

LOCK = ".lock"
SETTINGS_FILE = "run.toml"


class RunFolder:
    """The files of a run by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / SETTINGS_FILE
        self.plan = path / "plan.json"
        self.hardware = path / "hardware.json"
        self.checkpoints = path / CHECKPOINTS
        self.metrics = path / METRICS_FILE
        self.samples = path / "samples.jsonl"
        self.timeline = path / TIMELINE_FILE
        self.record = path / FOLDER

    def lock(self) -> TextIO:
        """Lock the folder until the returned file is closed. Raises ConfigError if another process holds the lock."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / LOCK).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(
                f"another process trains in `{self.path}`",
                hint="wait for it, or set `trainer.output_dir` to a new folder",
            ) from None
        return file

    def begin(self, config: RunConfig, plan: Plan, hardware: Hardware) -> None:
        """Write the settings, plan and hardware of the run, each file atomically."""
        self.path.mkdir(parents=True, exist_ok=True)
        with file_written_whole(self.settings) as aside:
            aside.write_text(to_toml(config), encoding="utf-8")
        with file_written_whole(self.plan) as aside:
            save_plan(plan, aside)
        with file_written_whole(self.hardware) as aside:
            save_recording(hardware, aside)

    def start_again(self) -> list[str]:
        """Prepare the folder for a run that begins at step 1.

        The record of steps without a checkpoint is kept under another name, with a note; that of a first step that did
        not end is dropped.
        """
        if not self.metrics.exists() or not any(is_step(line) for line in self.metrics.open(encoding="utf-8")):
            for file in (self.samples, self.timeline):
                file.unlink(missing_ok=True)
            return []
        number = next(number for number in count(1) if not self.metrics.with_suffix(f".{number}.jsonl").exists())
        for file in (self.samples, self.timeline, self.record, self.metrics):  # the last one tells of the others
            if file.exists():
                file.rename(file.with_suffix(f".{number}{file.suffix}"))
        kept = self.metrics.with_suffix(f".{number}.jsonl")
        return [f"`{self.path}` has no checkpoint: the run begins at step 1, and its former record is kept in `{kept}`"]

    def has_validation(self, step: int) -> bool:
        """Whether the record holds a validation of the step, or there is no record."""
        if not self.metrics.exists():
            return True
        with self.metrics.open(encoding="utf-8") as lines:
            return any(step_of(line) == step and not is_step(line) for line in lines)

    def write_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append samples of a step."""
        with self.samples.open("a", encoding="utf-8") as file:
            for sample in samples:
                file.write(json.dumps({"step": step} | dict(sample), ensure_ascii=False, default=str) + "\n")


def choose_checkpoint(folder: RunFolder, config: RunConfig) -> FoundCheckpoint:
    """The checkpoint to continue from according to `trainer.resume`.

    A run may start from a checkpoint of another folder; once it has checkpoints of its own, it continues from those.
    Raises ConfigError for a folder that belongs to another run or holds newer checkpoints than the named one, and
    CheckpointError for an unusable checkpoint or one of another format.
    """
    found = _choose(folder, config)
    if found.path is not None:
        load_run_state(found.path)
    return found


def _choose(folder: RunFolder, config: RunConfig) -> FoundCheckpoint:
    resume = config.trainer.resume
    if folder.path.exists() and not folder.path.is_dir():
        raise ConfigError(f"`trainer.output_dir` is `{folder.path}`, which is a file", hint="name a folder")
    if resume in ("auto", "never"):
        return _newest_of(folder, config)
    named = open_checkpoint(Path(resume).expanduser())
    newest = _newest_of(folder, config)
    assert named.path is not None
    if named.path.resolve().parent != folder.checkpoints.resolve():
        return named if newest.path is None else newest
    if newest.step > named.step:
        raise ConfigError(
            f"`{folder.checkpoints}` holds step {newest.step} and `trainer.resume` names step {named.step}",
            hint="set `trainer.output_dir` to a new folder to go on from there, or remove the newer checkpoints",
        )
    return named


def _newest_of(folder: RunFolder, config: RunConfig) -> FoundCheckpoint:
    if not folder.settings.exists():
        if folder.path.exists() and any(not path.name.startswith(".") for path in folder.path.iterdir()):
            raise ConfigError(
                f"`{folder.path}` is not empty and holds no run",
                hint="set `trainer.output_dir` to a new folder",
            )
        return FoundCheckpoint(path=None, step=0)
    if config.trainer.resume == "never":
        raise ConfigError(
            f"`{folder.path}` already holds a run and `trainer.resume` is `never`",
            hint="set `trainer.output_dir` to a new folder, or `trainer.resume=auto` to continue",
        )
    different = differences(_former_settings(folder), config)
    if different:
        listed = ", ".join(f"`{key}` was {old} and is {new}" for key, old, new in different[:4])
        more = f", and {len(different) - 4} more" if len(different) > 4 else ""
        raise ConfigError(
            f"`{folder.path}` holds another run: {listed}{more}",
            hint="set `trainer.output_dir` to a new folder, or give the settings of that run to continue it",
        )
    found = find_newest(folder.checkpoints)
    if found.path is None and found.skipped:
        raise CheckpointError(
            f"`{folder.checkpoints}` has no complete checkpoint: {found.skipped[0]}",
            hint=f"set `trainer.output_dir` to a new folder, or remove `{folder.path}` to start again at step 1",
        )
    return found


def differences(before: RunConfig, now: RunConfig) -> list[tuple[str, Any, Any]]:
    """Settings that make two configurations different runs, as key, old and new value."""
    old, new = asdict(before), asdict(now)
    may_change = {**_MAY_CHANGE}
    if now.data.on_change == "restart":
        may_change["data"] = _MAY_CHANGE["data"] | _MAY_CHANGE_ON_RESTART
    return [
        (f"{section}.{key}", old[section][key], value)
        for section, values in new.items()
        if section not in ("plan", POOLS)
        for key, value in values.items()
        if key not in may_change.get(section, ()) and old[section][key] != value
    ]


def _former_settings(folder: RunFolder) -> RunConfig:
    try:
        return load_config(folder.settings, []).config
    except RLCompatError as error:
        raise ConfigError(
            f"`{folder.settings}` of an earlier run cannot be read: {error.message}",
            hint="set `trainer.output_dir` to a new folder",
        ) from error
