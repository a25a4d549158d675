"""`rlc eval`: how good a model or a run is on held-out data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rl_compat.cli.common import AsCard, AsJson, HardwareFile, load_hardware, new_app, show_report
from rl_compat.cli.render import print_json, print_table

app = new_app()


@app.command(name="eval")
def evaluate_model(
    target: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="A model, a run folder, or one of its checkpoints.")
    ],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings.")] = None,
    hardware: HardwareFile = None,
    as_card: AsCard = None,
    as_json: AsJson = False,
) -> int:
    """Answer the validation prompts once each and report accuracy with its 95 % interval.

    With an algorithm that learns from given responses (sft, dpo, kto, reward_model): loss, margin and accuracy on the
    validation rows; add `algorithm.name=ppo` to have their prompts answered all the same. A run is evaluated with its
    own settings at its newest complete checkpoint; key=value settings change them.

    Example: rlc eval runs/default data.max_val_samples=200
    """
    from rl_compat import verl
    from rl_compat.cli.reporter import TerminalReporter
    from rl_compat.config.load import load_config
    from rl_compat.emulation.device import emulate
    from rl_compat.trainer.tools.evaluate import checkpoint_of, evaluate, run_of
    from rl_compat.trainer.tools.offline_evaluate import evaluate_offline, has_given_responses

    run = run_of(target)
    checkpoint = None if run is None else checkpoint_of(target, run)
    given = list(settings or ())
    file, named = (None, [f"model.path={target}"]) if run is None else (run.settings, [])
    loaded = load_config(file, [*named, *given], dialect=verl)
    show_report(loaded)
    machine = load_hardware(hardware, as_card)
    step = checkpoint.step if checkpoint else None
    title = target if checkpoint is None else f"{target} at step {step}"
    if has_given_responses(loaded.config):
        with TerminalReporter() as reporter:
            measured = evaluate_offline(
                loaded.config, machine, checkpoint=checkpoint, reporter=reporter, around=emulate
            )
        if as_json:
            print_json(measured.metrics() | {"num_rows": measured.num_rows, "step": step})
        else:
            print_table(f"{title}, {measured.size}", ("measure", "value", "95 % interval"), measured.rows())
        return 0
    with TerminalReporter() as reporter:
        found = evaluate(loaded.config, machine, checkpoint=checkpoint, reporter=reporter, around=emulate)
    if as_json:
        print_json(asdict(found) | {"step": step})
        return 0
    rows = [(a.source, a.measure, a.shown(a.mean), a.interval, a.num_prompts) for a in found.accuracies]
    print_table(title, ("data", "measure", "mean", "95 % interval", "prompts"), rows)
    return 0
