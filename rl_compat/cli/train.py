"""`rlc train`: check the settings, plan, then train."""

from __future__ import annotations

import math
import shlex
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_compat.cli.common import AsCard, HardwareFile, Pools, Settings, load_hardware, pool_settings, read_settings
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import TerminalReporter, discard, print_json, print_lines, print_note, show_error, width_of
from rl_compat.config.types import RunConfig
from rl_compat.errors import DamagedCheckpointError, RLCompatError, UsageError

if TYPE_CHECKING:
    from rl_compat.trainer.run import Ending, RunOutcome
    from rl_compat.trainer.training import Training

app = new_app()


@app.command()
def train(
    settings: Settings = None,
    hardware: HardwareFile = None,
    as_card: AsCard = None,
    pool: Pools = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check settings, data and plan, then stop before loading a model.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Train a language model on this machine, or on a Ray cluster.

    `algorithm.name` selects the algorithm: ppo, grpo and related algorithms learn from rewards, sft from given
    responses, dpo and kto from preferences; reward_model trains a reward model. Without arguments, PPO trains
    SmolLM2-135M on GSM8K. verl's keys are accepted too. `rlc settings` lists and explains all settings.

    Metrics, samples and checkpoints go to the folder `trainer.output_dir`. Running the same command again resumes the
    run from its newest checkpoint.

    Example: rlc train algorithm.name=grpo algorithm.group_size=8 trainer.output_dir=runs/grpo

    Several devices: rlc train run.toml plan.num_devices=4 --pool score=1:reward
    """
    loaded = read_settings([*(settings or ()), *pool_settings(pool)])
    machine = load_hardware(hardware, as_card, address=loaded.config.plan.address)
    from rl_compat.trainer.training import Training

    config = _without_console(loaded.config) if as_json else loaded.config
    training = Training(config, machine)
    with closing(training):
        for note in training.notes:
            print_note(f"note: {note}")
        print_note(f"{training.recipe.summary()}; `rlc plan --explain` gives the reasons")
        if not settings and training.recipe.prepared.setup.plan.pool_of("actor").device == "cpu":
            print_note("note: this run is sized for a GPU; `rlc train gsm8k-cpu` is a version sized for a CPU")
        if dry_run:
            return 0
        options = {"--hardware": hardware, "--as": as_card}
        named = [str(word) for option in options.items() if option[1] for word in option]
        again = shlex.join(["rlc", "train", str(training.folder.path), *named])
        if training.has_nothing_to_do:
            step = training.saved_step
            if as_json:
                print_json(_as_json(training, ending="nothing to do"))
            print_note(
                f"nothing to do: `{training.folder.path}` has all {step} steps; a larger `trainer.num_steps` adds more"
            )
            return 0
        try:
            with TerminalReporter() as reporter:
                outcome = training.run(reporter)
        except Exception as error:
            if isinstance(error, RLCompatError):
                show_error(error)
            else:
                traceback.print_exception(error)
            refused = isinstance(error, UsageError) and training.saved_step == training.resumed.step
            untouched = refused or isinstance(error, DamagedCheckpointError)
            kept = "the run is as it was before" if untouched else _what_is_kept(training, again)
            print_note(f"failed: {kept}")
            return error.exit_code if isinstance(error, RLCompatError) else 1
    try:
        _show(outcome, training, as_json)
    except OSError:
        discard(sys.stdout)
    print_note(_last_line(outcome, training, again))
    return 0 if outcome.interrupted is None else outcome.interrupted.exit_code


def _last_line(outcome: RunOutcome, training: Training, again: str) -> str:
    """What happened, why, and what follows."""
    run = shlex.quote(str(training.folder.path))
    if outcome.ending in ("finished", "nothing to do"):
        return f"finished all {outcome.total_steps} steps; `rlc eval {run}` evaluates, `rlc export {run} DIR` exports"
    why: object = outcome.interrupted
    if outcome.interrupted is None:
        why = f"`trainer.max_seconds={training.recipe.prepared.setup.config.trainer.max_seconds:g}`"
    return f"stopped by {why}: {_what_is_kept(training, again)}"


def _what_is_kept(training: Training, again: str) -> str:
    step, total = training.saved_step, training.recipe.prepared.total_steps
    if not step:
        return f"no step is saved, and `{again}` begins at step 1"
    return f"step {step} of {total} is saved, and `{again}` continues"


def _without_console(config: RunConfig) -> RunConfig:
    """The same settings without the console logger, so that stdout holds nothing but JSON."""
    loggers = tuple(name for name in config.trainer.loggers if name != "console")
    return replace(config, trainer=replace(config.trainer, loggers=loggers))


def _as_json(training: Training, *, ending: Ending, outcome: RunOutcome | None = None) -> dict[str, Any]:
    checkpoint = training.resumed.path if outcome is None else outcome.checkpoint
    curve = () if outcome is None else outcome.curve
    return {
        "ending": ending,
        "step": training.saved_step,
        "total_steps": training.recipe.prepared.total_steps,
        training.recipe.measure.key: [value if math.isfinite(value) else None for value in curve],
        "checkpoint": str(checkpoint) if checkpoint else None,
        "run": str(training.folder.path),
        "interrupted": ending == "interrupted",
    }


def _show(outcome: RunOutcome, training: Training, as_json: bool) -> None:
    from rl_compat.tracking.curve import marks_for, render_curve

    if as_json:
        print_json(_as_json(training, ending=outcome.ending, outcome=outcome))
        return
    if outcome.curve:
        first_step = outcome.step - len(outcome.curve) + 1
        marks = marks_for(sys.stdout.encoding)
        width = min(64, width_of(sys.stdout))
        curve = render_curve(outcome.curve, width=width, height=10, first_step=first_step, marks=marks)
        print_lines(["", f"{outcome.measure.title} by step", *curve, ""])
    for label, validation in (("before", outcome.before), ("after", outcome.after)):
        print_lines(f"{label:<6} {sentence}" for sentence in (validation.headline if validation else ()))
    folder = training.folder
    files = {
        "metrics": folder.metrics,
        "samples": folder.samples,
        "plan": folder.plan,
        "checkpoint": outcome.checkpoint,
    }
    print_lines(f"{name:<11} {path}" for name, path in files.items() if path is not None and path.exists())
