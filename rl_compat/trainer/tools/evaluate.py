"""Evaluation of a model or of a run's checkpoint, without training."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rl_compat.config.load import load_config
from rl_compat.config.types import RunConfig
from rl_compat.emulation.device import emulate
from rl_compat.errors import CheckpointError, ConfigError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.workload import evaluation_workload
from rl_compat.trainer.checkpoints import FoundCheckpoint, find_newest, open_checkpoint
from rl_compat.trainer.offline.data import validation_items
from rl_compat.trainer.offline.held_out import HeldOut, HeldOutRows
from rl_compat.trainer.online.prompt_data import load_validation_prompts
from rl_compat.trainer.online.validate import Validation, validate
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.setup.offline import check_model, load_learner
from rl_compat.trainer.setup.online import start_reward
from rl_compat.trainer.setup.roles import load_actor
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.learner import LearnerWorker
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.setup import prepare


def run_of(path: str) -> RunFolder | None:
    """The run folder of `path`, which may be one of its checkpoints; None if `path` is a model."""
    folder = Path(path).expanduser()
    for candidate in (folder, folder.parent.parent):
        if (candidate / "run.toml").is_file():
            return RunFolder(candidate)
    return None


def checkpoint_of(path: str, run: RunFolder) -> FoundCheckpoint:
    """The checkpoint at `path`, or the newest complete one of the run. Raises CheckpointError."""
    folder = Path(path).expanduser()
    if folder != run.path:
        return open_checkpoint(folder)
    found = find_newest(run.checkpoints)
    if found.path is None:
        why = f": {found.skipped[0]}" if found.skipped else ""
        raise CheckpointError(f"`{run.path}` has no complete checkpoint{why}", hint="train with `trainer.save_every=1`")
    return found


def settings_of(run: RunFolder) -> RunConfig:
    """The settings with which a run was started."""
    return load_config(run.settings, []).config


def restore_actor(actor: ActorModel, checkpoint: FoundCheckpoint) -> None:
    assert checkpoint.path is not None
    actor.policy.run(PolicyWorker.load_weights, folder=checkpoint.path / "actor").result()


def evaluate(
    config: RunConfig,
    hardware: Hardware,
    *,
    checkpoint: FoundCheckpoint | None,
    reporter: Reporter,
) -> Validation:
    """Generate and score one response per validation prompt.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError before weights are loaded.
    """
    without_critic = replace(config, model=replace(config.model, critic_path=None))
    setup = prepare(without_critic, hardware, describe=evaluation_workload)
    plan = setup.plan
    prompts, notes = load_validation_prompts(setup)
    if not prompts:
        raise ConfigError("`data.val_files` is empty: there is nothing to evaluate on", hint="set `data.val_files`")
    for note in (*setup.notes, *notes, *plan.notes):
        reporter.say(f"note: {note}")
    timer = Timer(reporter)
    with emulate(plan.pool_of("actor")), closing(start_reward(setup, prompts)) as reward:
        actor = load_actor(setup, reporter, trains=False)
        if checkpoint is not None:
            restore_actor(actor, checkpoint)
        with timer("testing", items=len(prompts)) as on_progress:
            return validate(actor, reward, prompts, config, on_progress=on_progress)


def evaluate_offline(
    config: RunConfig,
    hardware: Hardware,
    *,
    checkpoint: FoundCheckpoint | None,
    reporter: Reporter,
) -> HeldOut:
    """Evaluate on the held-out rows of the settings. The reference is the initial model of the run.

    Raises ConfigError, DataError, ModelError, HardwareError or DoesNotFitError before weights are loaded.
    """
    setup = prepare(config, hardware, describe=evaluation_workload)
    check_model(setup)
    data = validation_items(setup)
    if not data.items:
        raise ConfigError("`data.val_files` is empty: there is nothing to evaluate on", hint="set `data.val_files`")
    for note in (*setup.notes, *data.notes, *setup.plan.notes):
        reporter.say(f"note: {note}")
    timer = Timer(reporter)
    with emulate(setup.plan.pool_of("actor")):
        reporter.phase("loading the model")
        learner = load_learner(setup, trains=False)
        rows = HeldOutRows(setup, data.items)
        with timer("ref", items=len(data.items)) as on_progress:
            rows.measure_reference(learner, on_progress=on_progress)
        if checkpoint is not None:
            assert checkpoint.path is not None
            learner.group.run(LearnerWorker.load_weights, folder=checkpoint.path / "actor").result()
        with timer("testing", items=len(data.items)) as on_progress:
            return rows.measure(learner, on_progress=on_progress)
