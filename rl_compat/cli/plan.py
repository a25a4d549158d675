"""`rlc plan`: how a run would work on this machine, why, and whether it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.common import AsCard, Pools, Settings, load_hardware, pool_settings, read_settings
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table
from rl_compat.config.types import RunConfig
from rl_compat.errors import UsageError, quoted
from rl_compat.hardware.types import Hardware
from rl_compat.models.files.registry import resolve_model
from rl_compat.planning import report
from rl_compat.planning.cluster import is_cluster, load_cluster
from rl_compat.planning.run import run_plan, simulate_run
from rl_compat.planning.serialize import to_json
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.simulation.choose import COLUMNS, Divisions
from rl_compat.planning.simulation.rates import ESTIMATES, given_lengths
from rl_compat.planning.speed.measurements import own_measurements
from rl_compat.planning.types import Plan, RoleName
from rl_compat.planning.workload import Workload, run_workload
from rl_compat.units import format_bytes, parse_memory

CHOSEN_PACKAGES = ("vllm", "flash-attn", "bitsandbytes")
"that decide which engines, kernels and quantized weights a plan may choose"

Machines = Annotated[
    Path | None,
    typer.Option(
        "--hardware",
        "--cluster",
        metavar="FILE",
        help="Plan for the machine recorded in FILE by `rlc probe --json`, or for the nodes that FILE lists.",
    ),
]

app = new_app()


@app.command()
def plan(
    settings: Settings = None,
    hardware: Machines = None,
    as_card: AsCard = None,
    pool: Pools = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            "--host-memory",
            metavar="SIZE",
            help="Plan for another machine with that much host memory, for example 64GiB; with `--as`, one with a real "
            "card of that name.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also show every memory item of every phase and every rejected alternative."),
    ] = False,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Simulate the run with all devices in turn and with devices divided between generation and learning: "
            "their best division and staleness, and whether that pays.",
        ),
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            metavar="RUN|MEAN,P99",
            help="With `--simulate`: response lengths of the samples in a run's folder, or a lognormal distribution "
            "with this mean and 99th percentile, such as 900,4000. The default has a third of "
            "`data.max_response_length` as its mean and that length as its 99th percentile.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="RUN", help="With `--simulate`: use the times that a run has measured, not estimates."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how `rlc train` would run with the same arguments: choices with reasons, and memory by phase.

    No model is loaded. The exit code is 2 if a setting cannot work on this hardware or the run does not fit.

    Example: rlc plan model.path=Qwen/Qwen2.5-0.5B-Instruct --as p40 --host-memory 64GiB --explain

    Example: rlc plan gsm8k --cluster nodes.toml plan.num_devices=8 plan.num_nodes=4 --simulate --lengths 900,4000
    """
    for option, given in (("--lengths", lengths), ("--measured", measured)):
        if given is not None and not simulate:
            raise UsageError(f"`{option}` is for a simulation", hint=f"add `--simulate`, or leave out `{option}`")
    cluster = hardware if hardware is not None and is_cluster(hardware) else None
    if cluster is not None and (as_card, host_memory) != (None, None):
        raise UsageError(
            f"`{cluster}` describes all machines, and `--as` and `--host-memory` another one",
            hint="use `gpus` and `host_memory` of its nodes",
        )
    loaded = read_settings([*(settings or ()), *pool_settings(pool)])
    memory_bytes = None if host_memory is None else parse_memory(host_memory)
    machine = load_hardware(
        None if cluster else hardware, as_card, memory_bytes, address=None if cluster else loaded.config.plan.address
    )
    if as_card is not None:
        print_note(f"note: {_what_is_of_this_machine(machine, 'this machine' if hardware is None else str(hardware))}")

    config = loaded.config
    paths: dict[RoleName, str | None] = {
        "actor": config.model.path,
        "critic": config.model.critic_path,
        "reward": config.reward.model,
        "cost": config.cost.model,
    }
    workload = run_workload(config, {role: _shape_of(path) for role, path in paths.items() if path is not None})
    nodes = machine if cluster is None else load_cluster(cluster, machine)
    made = run_plan(config, workload, nodes, measured=own_measurements())
    for warning in machine.warnings if cluster is None else ():
        print_note(f"note: {warning}")
    if simulate:
        drawn = given_lengths(lengths, longest=config.data.max_response_length)
        found = simulate_run(config, workload, nodes, drawn, measured=measured)
        print_json(found.as_json()) if as_json else _show_simulation(found, config)
        return
    if as_json:
        print_json(to_json(made))
        return
    set_by_name = [key for key, source in loaded.sources.items() if source == "algorithm"]
    _show(made, config, workload, set_by_name, explain=explain)


def _what_is_of_this_machine(machine: Hardware, base: str) -> str:
    """What the answer for another card takes from the machine that it is planned on."""
    host, card = machine.host, machine.devices[0].name
    missing = quoted(name for name in CHOSEN_PACKAGES if name not in machine.software.packages)
    packages = f"packages{f' (without {missing})' if missing else ''}"
    if machine.emulated is None:
        memory = format_bytes(host.ram_available_bytes)
        return f"planned for a machine with {card} and {memory} of host memory; its cores and {packages} are {base}'s"
    return (
        f"{card} is emulated on {base}, whose host memory ({format_bytes(host.ram_available_bytes)} available), cores "
        f"and {packages} limit the plan; `--host-memory SIZE` plans for another machine with that card"
    )


def _shape_of(path: str) -> ModelShape:
    """A model's shape from its configuration. A model of `rlc models` does not have to be downloaded."""
    return KNOWN_SHAPES.get(path) or ModelShape.from_folder(resolve_model(path, needs=("config",)).folder)


def _show_simulation(found: Divisions, config: RunConfig) -> None:
    flow = found.synchronous.flow
    print_lines(
        [
            f"devices  {flow.generating}, each with up to {flow.num_slots} sequences",
            f"lengths  {found.mean_length:.0f} tokens on average, {found.longest} at most",
            f"times    {flow.source}: {1000 * flow.decode_seconds:.3g} ms a token, {flow.row_seconds:.3g} s of "
            f"learning a response, {flow.handover_seconds:.3g} s a handover",
            "",
        ]
    )
    runs = [found.synchronous, *([found.best] if found.best else []), *found.others]
    print_table("simulated", COLUMNS, [item.row() for item in runs])
    if flow.source == ESTIMATES:
        print_note("note: estimates serve to compare plans; `--measured RUN` uses the times of a run on these devices")
    print_lines(["", found.verdict])
    if found.best is not None and found.pays and config.plan.num_nodes == 1 and not config.pools:
        best = found.best.flow
        on = "cpu" if config.plan.device == "cpu" else best.generating
        given = f"trainer.flow=async trainer.max_staleness={best.max_staleness} plan.num_devices={best.learning}"
        print_lines([f"use `{given} --pool gen={on}:rollout`"])


def _show(made: Plan, config: RunConfig, workload: Workload, set_by_name: list[str], *, explain: bool) -> None:
    several = len(made.pools) > 1 or any(pool.num_ranks > 1 for pool in made.pools.values())
    titles = {name: f" of pool `{name}`" if len(made.pools) > 1 else "" for name in made.pools}
    print_lines([*report.headline(made), *report.algorithm_lines(made, config, set_by_name), ""])
    if several:
        print_table("roles", report.ROLE_COLUMNS, report.role_rows(made))
    for name, pool in made.pools.items():
        print_table(f"choices{titles[name]}", report.CHOICE_COLUMNS, report.choice_rows(pool))
        if explain:
            print_table(f"rejected{titles[name]}", report.REJECTED_COLUMNS, report.rejected_rows(pool))
    print_lines(["", *report.size_lines(made, workload), ""])
    for name, pool in made.pools.items():
        if explain:
            print_table(f"memory by item{titles[name]}", report.ITEM_COLUMNS, report.item_rows(pool))
        each = " on each device" if pool.num_ranks > 1 else ""
        print_table(f"memory by phase{each}{titles[name]}", report.PHASE_COLUMNS, report.phase_rows(pool))
        if report.step_rows(pool):
            print_table(f"a step{each}{titles[name]}, estimated", report.STEP_COLUMNS, report.step_rows(pool))
    print_lines(["", *(f"note: {note}" for note in made.notes), *report.verdict(made)])
