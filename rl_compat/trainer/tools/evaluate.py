"""Evaluation of a model or of a run's checkpoint, without training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

from rl_compat.algorithms.table import is_offline
from rl_compat.config.types import RunConfig
from rl_compat.errors import CheckpointError, ConfigError, did_you_mean
from rl_compat.hardware.types import Hardware
from rl_compat.planning.workload import evaluation_workload
from rl_compat.trainer.checkpoints import FoundCheckpoint, find_newest, held, open_checkpoint
from rl_compat.trainer.offline.data import validation_items
from rl_compat.trainer.offline.held_out import HeldOut, HeldOutRows
from rl_compat.trainer.online.prompt_data import load_validation_prompts
from rl_compat.trainer.online.validate import Validation, validate
from rl_compat.trainer.phases import Phases
from rl_compat.trainer.reporter import Reporter
from rl_compat.trainer.run_folder import SETTINGS_FILE, RunFolder
from rl_compat.trainer.setup.offline import check_model, load_learner
from rl_compat.trainer.setup.online import start_reward
from rl_compat.trainer.setup.roles import load_actor
from rl_compat.workers.learner import LearnerWorker
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.setup import Setup, applied, prepare


def run_of(path: str) -> RunFolder | None:
    """The run folder of `path`, which may be one of its checkpoints; None if `path` is a model.

    Raises ConfigError for the path of a folder that does not exist.
    """
    folder = Path(path).expanduser()
    for candidate in (folder, folder.parent.parent):
        if (candidate / SETTINGS_FILE).is_file():
            return RunFolder(candidate)
    runs = [str(found.parent) for found in folder.parent.glob(f"*/{SETTINGS_FILE}")]
    is_path = path[:1] in "./~" or folder.parent.name == "runs" or len(folder.parts) > 2  # a hub id has one slash
    if not folder.exists() and (is_path or (runs and len(folder.parts) > 1)):
        raise ConfigError(f"there is no folder `{path}`", hint=did_you_mean(path, runs))
    return None


def hold_checkpoint(path: str, run: RunFolder) -> AbstractContextManager[FoundCheckpoint]:
    """The checkpoint at `path`, or the newest complete one of the run, kept meanwhile. Raises CheckpointError."""
    folder = Path(path).expanduser()
    return held(lambda: open_checkpoint(folder) if folder != run.path else _newest_of(run))


def _newest_of(run: RunFolder) -> FoundCheckpoint:
    found = find_newest(run.checkpoints)
    if found.path is None:
        why = f": {found.skipped[0]}" if found.skipped else ""
        raise CheckpointError(f"`{run.path}` has no complete checkpoint{why}", hint="train with `trainer.save_every=1`")
    return found


def evaluate(
    config: RunConfig, hardware: Hardware, *, checkpoint: FoundCheckpoint | None, reporter: Reporter
) -> Validation | HeldOut:
    """Evaluate the model of the settings, or a checkpoint of it, on the data of `data.val_files`.

    One response per prompt is generated and scored. For an algorithm that learns from offline data, the result is that
    of the held-out rows, with the initial model of the run as the reference. Raises ConfigError, DataError, ModelError,
    HardwareError or DoesNotFitError before weights are loaded.
    """
    if not config.data.val_files:
        raise ConfigError("`data.val_files` is empty: there is nothing to evaluate on", hint="set `data.val_files`")
    setup = prepare(
        replace(config, model=replace(config.model, critic_path=None)), hardware, describe=evaluation_workload
    )
    weights = None if checkpoint is None or checkpoint.path is None else checkpoint.path / "actor"
    phases = Phases.of_setup(setup, reporter)
    if is_offline(config.algorithm.name):
        return _evaluate_offline(setup, weights, phases)
    prompts, notes = load_validation_prompts(setup)
    _say(reporter, (*setup.notes, *notes, *setup.plan.notes))
    with applied(setup.plan, setup.pools), closing(start_reward(setup, prompts)) as reward:
        actor = load_actor(setup, reporter, trains=False)
        if weights is not None:
            actor.policy.run(PolicyWorker.load_weights, folder=weights).result()
        with phases("testing", items=len(prompts)) as on_progress:
            return validate(actor, reward, prompts, config, on_progress=on_progress)


def _evaluate_offline(setup: Setup, weights: Path | None, phases: Phases) -> HeldOut:
    check_model(setup)
    data = validation_items(setup)
    _say(phases.reporter, (*setup.notes, *data.notes, *setup.plan.notes))
    with applied(setup.plan, setup.pools):
        phases.reporter.phase("loading the model")
        learner = load_learner(setup, trains=False)
        rows = HeldOutRows(setup, data.items)
        with phases("ref", items=len(data.items)) as on_progress:
            rows.measure_reference(learner, on_progress=on_progress)
        if weights is not None:
            learner.group.run(LearnerWorker.load_weights, folder=weights).result()
        with phases("testing", items=len(data.items)) as on_progress:
            return rows.measure(learner, on_progress=on_progress)


def _say(reporter: Reporter, notes: Sequence[str]) -> None:
    for note in notes:
        reporter.say(f"note: {note}")
