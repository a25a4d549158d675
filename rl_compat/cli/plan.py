"""`rlc plan`: what would be done on this machine, why, and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.common import AsCard, AsJson, HardwareFile, Settings, load_hardware, new_app, read_settings
from rl_compat.cli.render import print_json, print_lines, print_note, print_table

if TYPE_CHECKING:
    from rl_compat.config.types import RunConfig
    from rl_compat.planning.shapes.shape import ModelShape
    from rl_compat.planning.types import Plan

app = new_app()


@app.command()
def plan(
    settings: Settings = None,
    hardware: HardwareFile = None,
    as_card: AsCard = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every item of every phase and every alternative that was rejected.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what `rlc train` would do with the same arguments: choices with reasons, and memory by phase.

    Nothing is loaded. Exit code 2 when a setting cannot work here or nothing fits.

    Example: rlc plan model.path=Qwen/Qwen2.5-0.5B-Instruct --as "Tesla P40" --explain
    """
    loaded = read_settings(settings)
    machine = load_hardware(hardware, as_card)
    from rl_compat.planning.fit import make_plan
    from rl_compat.planning.speed.measurements import own_measurements

    config = loaded.config
    critic_path = config.model.critic_path or config.model.path
    made = make_plan(
        config,
        machine,
        _shape_of(config.model.path),
        _shape_of(critic_path),
        reward_shape=_shape_of(config.reward.model) if config.reward.model else None,
        cost_shape=_shape_of(config.cost.model) if config.cost.model else None,
        measured=own_measurements(),
    )
    for warning in machine.warnings:
        print_note(f"note: {warning}")
    if as_json:
        from rl_compat.planning.serialize import to_json

        print_json(to_json(made))
        return
    set_by_name = [key for key, source in loaded.sources.items() if source == "algorithm"]
    _show(made, config, set_by_name, explain=explain)


def _shape_of(path: str) -> ModelShape:
    """A model's shape from its configuration alone; a model of `rlc models` need not be there yet."""
    from rl_compat.models.files.registry import resolve_model
    from rl_compat.planning.shapes.known import KNOWN_SHAPES
    from rl_compat.planning.shapes.shape import ModelShape

    return KNOWN_SHAPES.get(path) or ModelShape.from_folder(resolve_model(path, needs=("config",)).folder)


def _show(made: Plan, config: RunConfig, set_by_name: list[str], *, explain: bool) -> None:
    from rl_compat.planning import report

    print_lines([*report.headline(made), *report.algorithm_lines(made, config, set_by_name), ""])
    print_table("choices", report.CHOICE_COLUMNS, report.choice_rows(made))
    if explain:
        print_table("rejected", report.REJECTED_COLUMNS, report.rejected_rows(made))
    print_lines(["", *report.size_lines(made, config), ""])
    if explain:
        print_table("memory by item", report.ITEM_COLUMNS, report.item_rows(made))
    print_table("memory by phase", report.PHASE_COLUMNS, report.phase_rows(made))
    print_lines(["", *(f"note: {note}" for note in made.notes), report.verdict(made)])
