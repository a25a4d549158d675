"""`rlc train`: check the settings, plan, then train."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.common import AsCard, AsJson, HardwareFile, Settings, load_hardware, new_app, read_settings
from rl_compat.cli.render import TerminalReporter, print_json, print_lines, print_note, print_warning
from rl_compat.config.types import RunConfig

if TYPE_CHECKING:
    from rl_compat.trainer.run import RunOutcome
    from rl_compat.trainer.run_folder import RunFolder

app = new_app()


@app.command()
def train(
    settings: Settings = None,
    hardware: HardwareFile = None,
    as_card: AsCard = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check settings, data and plan, then stop before loading a model.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Train a language model on this machine.

    `algorithm.name` selects the algorithm: ppo, grpo and related algorithms learn from rewards, sft from given
    responses, dpo and kto from preferences; reward_model trains a reward model. Without arguments, PPO trains
    SmolLM2-135M on GSM8K. verl's keys are accepted too. `rlc settings` lists and explains all settings.

    Metrics, samples and checkpoints go to the folder `trainer.output_dir`. Running the same command again resumes the
    run from its newest checkpoint.

    Example: rlc train algorithm.name=grpo algorithm.group_size=8 trainer.output_dir=runs/grpo
    """
    loaded = read_settings(settings)
    machine = load_hardware(hardware, as_card)
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
        with TerminalReporter() as reporter:
            outcome = training.run(reporter)
    _show(outcome, training.folder, as_json)
    if outcome.interrupted is None:
        return 0
    print_warning(f"stopped by {outcome.interrupted} after step {outcome.step}; run the same command to resume")
    return outcome.interrupted.exit_code


def _without_console(config: RunConfig) -> RunConfig:
    """The same settings without the console logger, so that stdout holds nothing but JSON."""
    loggers = tuple(name for name in config.trainer.loggers if name != "console")
    return replace(config, trainer=replace(config.trainer, loggers=loggers))


def _show(outcome: RunOutcome, folder: RunFolder, as_json: bool) -> None:
    from rl_compat.tracking.curve import marks_for, render_curve

    if as_json:
        print_json(
            {
                "step": outcome.step,
                outcome.measure.key: list(outcome.curve),
                "checkpoint": str(outcome.checkpoint) if outcome.checkpoint else None,
                "run": str(folder.path),
                "interrupted": outcome.interrupted is not None,
            }
        )
        return
    if outcome.curve:
        first_step = outcome.step - len(outcome.curve) + 1
        marks = marks_for(sys.stdout.encoding)
        curve = render_curve(outcome.curve, width=64, height=10, first_step=first_step, marks=marks)
        print_lines(["", f"{outcome.measure.title} by step", *curve, ""])
    for label, validation in (("before", outcome.before), ("after", outcome.after)):
        for sentence in validation.headline if validation else ():
            print_lines([f"{label:<6} {sentence}"])
    print_lines(
        [
            f"metrics     {folder.metrics}",
            f"samples     {folder.samples}",
            f"plan        {folder.plan}",
            f"checkpoint  {outcome.checkpoint or 'none'}",
        ]
    )
