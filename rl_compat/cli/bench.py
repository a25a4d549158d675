"""`rlc bench`: how fast this machine is at what takes the time."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_compat.cli.common import AsJson, load_hardware, new_app
from rl_compat.cli.render import print_json, print_note, print_table, progress

app = new_app()

Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A model to measure on questions of GSM8K; random weights when left out."),
]
Engines = Annotated[
    str,
    typer.Option(
        "--engines",
        metavar="NAMES",
        help="Names such as `native-fp32`, or `native` for every dtype, separated by commas; all that run here when "
        "left out.",
    ),
]
Batches = Annotated[
    str, typer.Option("--batches", metavar="NUMBERS", help="Responses at once, numbers separated by commas.")
]
NewTokens = Annotated[int | None, typer.Option("--new-tokens", min=2, help="Tokens of a response, at most.")]
OnCpu = Annotated[bool, typer.Option("--cpu", help="Measure the processor, also beside a GPU.")]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds", min=1, help="For all engines together, which share it; 280 for the default cases on a CPU."
    ),
]
SECONDS_PER_ENGINE = 240.0
DEFAULT_CPU_SECONDS = 280.0


@app.callback()
def bench() -> None:
    """Measure this machine."""


@app.command()
def rollout(
    model: Model = None,
    engines: Engines = "",
    batches: Batches = "",
    new_tokens: NewTokens = None,
    cpu: OnCpu = False,
    max_seconds: MaxSeconds = None,
    as_json: AsJson = False,
) -> int:
    """Every engine that can generate here, on the same prompts: responses of one length and of many.

    `floor` is the share of a step that weights, cache and arithmetic take at the least. Engines in fp32 use neither
    TF32 nor flash attention, as on a card that has none. Each engine runs in a process of its own. The speeds are kept
    in the cache folder, where the planner finds them when it chooses an engine.

    Example: rlc bench rollout smollm2-135m --engines generate-fp32,native-fp32
    """
    from rl_compat.bench.request import (
        check_names,
        check_numbers,
        engines_here,
        measured_machine,
        options_for,
        questions_for,
    )
    from rl_compat.bench.run import COLUMNS, measured, table
    from rl_compat.cli.bench_record import keep, machine_facts, measurements_of, title
    from rl_compat.models.files.registry import resolve_model

    check_names(engines)
    check_numbers(batches)
    machine = measured_machine(load_hardware(None), cpu=cpu)
    names = engines_here(machine, engines)
    folder = None if model is None else str(resolve_model(model).folder)
    options = options_for(machine, folder=folder, batches=batches, new_tokens=new_tokens)
    usual = options.device == "cpu" and not any((model, batches, new_tokens))
    seconds = max_seconds or (DEFAULT_CPU_SECONDS if usual else SECONDS_PER_ENGINE * len(names))
    with progress(len(names) * options.num_cases, "rollout") as bar:
        rows = measured(
            names,
            options,
            questions_for(options),
            total_seconds=seconds,
            say=print_note,
            show=lambda finished, doing: bar.advance(finished, note=doing),
        )
    facts = machine_facts(machine)
    saved = keep(measurements_of(rows, facts, model=model or f"{options.shape}, random weights"))
    cells = table(rows, baseline=names[0])
    if as_json:
        print_json({"machine": facts, "model": model or options.shape, "rows": rows, "saved": saved})
    elif cells:
        print_table(title(facts), COLUMNS, cells)
    return 0 if cells else 1
