"""`rlc eval`: measure a model or a run on held-out data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rl_compat import verl
from rl_compat.algorithms.table import is_offline
from rl_compat.cli.common import AsCard, AsJson, HardwareFile, load_hardware, new_app, show_report
from rl_compat.cli.render import TerminalReporter, print_json, print_table
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
    from rl_compat.trainer.tools.evaluate import checkpoint_of, evaluate, evaluate_offline, run_of

    run = run_of(target)
    checkpoint = None if run is None else checkpoint_of(target, run)
    given = list(settings or ())
    file, named = (None, [f"model.path={target}"]) if run is None else (run.settings, [])
    loaded = load_config(file, [*named, *given], dialect=verl)
    show_report(loaded)
    machine = load_hardware(hardware, as_card)
    step = checkpoint.step if checkpoint else None
    title = target if checkpoint is None else f"{target} at step {step}"
    if is_offline(loaded.config.algorithm.name):
        with TerminalReporter() as reporter:
            measured = evaluate_offline(loaded.config, machine, checkpoint=checkpoint, reporter=reporter)
        if as_json:
            print_json(measured.metrics() | {"num_rows": measured.num_rows, "step": step})
        else:
            print_table(f"{title}, {measured.size}", ("measure", "value", "95 % interval"), measured.rows())
        return 0
    with TerminalReporter() as reporter:
        found = evaluate(loaded.config, machine, checkpoint=checkpoint, reporter=reporter)
    if as_json:
        print_json(asdict(found) | {"step": step})
        return 0
    rows = [(a.source, a.measure, a.shown(a.mean), a.interval, a.num_prompts) for a in found.accuracies]
    print_table(title, ("data", "measure", "mean", "95 % interval", "prompts"), rows)
    return 0
