"""`rlc eval`: measure a model or a run on held-out data."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from rl_compat import verl
from rl_compat.cli.common import AsCard, HardwareFile, load_hardware, show_report
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import TerminalReporter, print_json, print_table, print_warning
from rl_compat.config.load import load_config

app = new_app()


@app.command(name="eval")
def evaluate_model(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN",
            help="A model (a name from `rlc models`, a folder or a hub id), a run folder, or one of its checkpoints.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that override those of the run, or the defaults."),
    ] = None,
    hardware: HardwareFile = None,
    as_card: AsCard = None,
    as_json: AsJson = False,
) -> int:
    """Generate one response per validation prompt and report the accuracy with its 95 % interval.

    The prompts come from `data.val_files`. A run is evaluated with its own settings at its newest complete checkpoint.

    For a run that learns from offline data (sft, dpo, kto, reward_model), the loss, margin and accuracy on its
    validation rows are reported instead; add `algorithm.name=ppo` to generate responses to their prompts.

    Example: rlc eval runs/gsm8k data.max_val_samples=200
    """
    from rl_compat.trainer.tools.evaluate import evaluate, hold_checkpoint, run_of

    run = run_of(target)
    file, named = (None, [f"model.path={target}"]) if run is None else (run.settings, [])
    with nullcontext() if run is None else hold_checkpoint(target, run) as checkpoint, TerminalReporter() as reporter:
        loaded = load_config(file, [*named, *(settings or ())], dialect=verl)
        show_report(loaded)
        machine = load_hardware(hardware, as_card, address=loaded.config.plan.address)
        found = evaluate(loaded.config, machine, checkpoint=checkpoint, reporter=reporter)
    step = checkpoint.step if checkpoint else None
    if as_json:
        print_json(found.as_json() | {"step": step})
    elif found.rows():
        title = target if checkpoint is None else f"{target} at step {step}"
        print_table(", ".join(filter(None, [title, found.size])), found.columns, found.rows())
    for sentence in found.notes if found.rows() else (*found.headline, *found.notes):
        print_warning(str(sentence))
    return 0 if found.rows() else 1
